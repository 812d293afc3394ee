"""Uncertainties of a gallery in memory: ``python -m benchmarks.scale.gallery [--size N]``.

N = 1,000,000 features, D = 512, Z = 128, beside one product ``[N, D] x [D, Z]`` of the same
process, written to memory that is there already (``ratio``) and to new memory
(``ratio_to_new_memory``, as ``torch.mm`` does). Least of rounds, in each of which all three are
timed once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.scale.common import (
    SMALL,
    Points,
    Problem,
    Row,
    apart,
    matmul_rates,
    parser,
    seconds,
    show,
    write_part,
)
from laplace_metric import LaplaceEmbedder
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.laplace import Fitted, covariance, variance_trace
from laplace_metric.models.jacobians import LinearJacobian

TARGET = 2.0
CASES = ((False, False), (True, False), (True, True))
"""On the sphere, embeddings known."""


@dataclass(frozen=True)
class Budget:
    """Items of the gallery, points of the fit, repeats."""

    problem: Problem
    n: int = 1_000_000
    fit: int = 20_000
    repeats: int = 5
    product: int = 2_048


BUDGETS = {"full": Budget(Problem()), "smoke": Budget(SMALL, 2_000, 500, 2, 128)}


def gallery_cost(structure: str, budget: Budget) -> list[Row]:
    """Rows of one structure."""
    problem = budget.problem
    embedder = LaplaceEmbedder(problem.model(), structure=structure)
    embedder.fit(Points(budget.fit, problem), progress=False)
    x, _ = Points(budget.n, problem).together()
    rows = [row(embedder.fitted_, x, *case, budget.repeats) for case in CASES]
    return [show({"structure": structure, **one}) for one in rows]


def row(fit: Fitted, x: Tensor, spherical: bool, known: bool, repeats: int) -> Row:
    """One geometry; ``known``: the embeddings are given."""
    raw = fit.jacobian.forward(x) if known else None
    call = lambda: variance_trace(fit.jacobian, fit.posterior, x, raw, spherical=spherical)  # noqa: E731
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


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    budget = BUDGETS[options.budget]
    budget = replace(budget, n=options.size or budget.n)
    rates = apart(options, matmul_rates, budget.product)
    parts = [apart(options, gallery_cost, structure, budget) for structure in ("diag", "kron")]
    rows = [one for part in parts for one in part]
    write_part("gallery", {"rates": rates, "target": TARGET, "rows": rows}, options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("gallery", __doc__)
    found.add_argument("--size", type=int, metavar="N")
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
