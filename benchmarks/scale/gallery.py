"""Uncertainties of a gallery in memory: ``python -m benchmarks scale --pieces gallery [--n N]``.

N = 1,000,000 features, D = 512, Z = 128, beside one product ``[N, D] x [D, Z]`` of the same
process, written to memory that is there already (``ratio``) and to new memory
(``ratio_to_new_memory``, as ``torch.mm`` does). Least of rounds, in each of which all three are
timed once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.scale.common import Points, Row, apart, show, write_piece
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import matmul_rates, seconds
from laplace_metric import LaplaceEmbedder
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.laplace import Fitted
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace._traces import traced, traces_of

TARGET = 2.0
CASES = ((False, False), (True, False), (True, True))
"""On the sphere, embeddings known."""


def gallery_cost(structure: str, size: ScaleSize) -> list[Row]:
    """Rows of one structure."""
    problem = size.problem
    embedder = LaplaceEmbedder(problem.model(), structure=structure)
    embedder.fit(Points(size.fit, problem), progress=False)
    inputs = [Points(n, problem).together()[0] for n in size.n]
    return [
        show({"structure": structure, **row(embedder.fitted_, x, *case, size.repeats)})
        for x in inputs
        for case in CASES
    ]


def row(fit: Fitted, x: Tensor, spherical: bool, known: bool, repeats: int) -> Row:
    """One geometry; ``known``: the embeddings are given."""
    raw = fit.jacobian.forward(x) if known else None
    call = lambda: traced(traces_of(fit.jacobian, fit.posterior), x, raw, spherical=spherical)  # noqa: E731
    assert isinstance(fit.jacobian, LinearJacobian)
    weight, few = fit.jacobian.weight, slice(1_000)
    out = torch.empty(len(x), len(weight))
    taken = in_turn(
        {
            "seconds": call,
            "product_seconds": lambda: torch.mm(x, weight.T, out=out),
            "product_to_new_memory_seconds": lambda: torch.mm(x, weight.T),
        },
        repeats,
    )
    kind = ProjectedNormal if spherical else Gaussian
    exact = kind(fit.jacobian.forward(x[few]), covariance(fit.jacobian, fit.posterior, x[few]))
    return {
        "geometry": "sphere" if spherical else "raw",
        "embeddings_known": known,
        "n": len(x),
        **taken,
        "ratio": taken["seconds"] / taken["product_seconds"],
        "ratio_to_new_memory": taken["seconds"] / taken["product_to_new_memory_seconds"],
        "largest_relative_difference": float((call()[few] / exact.variance.sum(1) - 1).abs().max()),
    }


def in_turn(calls: Mapping[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Least wall time of each, one after the other in every round, so that all meet one load."""
    rounds = [{name: seconds(call)[0] for name, call in calls.items()} for _ in range(repeats + 1)]
    return {name: min(times[name] for times in rounds[1:]) for name in calls}


def run(options: Namespace) -> None:
    """Both structures."""
    size = SCALE["gallery"][options.size]
    size = replace(size, n=tuple(options.n or size.n))
    rates = apart(size, matmul_rates, size.product)
    parts = [apart(size, gallery_cost, structure, size) for structure in ("diag", "kron")]
    rows = [one for part in parts for one in part]
    write_piece("gallery", {"rates": rates, "target": TARGET, "rows": rows}, options)
