"""Uncertainties of a gallery in memory: ``python -m benchmarks.scale.gallery [--size N]``.

N = 1,000,000 features, D = 512, Z = 128, beside one product ``[N, D] x [D, Z]`` of the same
process, written to memory that is there already (``ratio``) and to new memory
(``ratio_to_new_memory``, as ``torch.mm`` does). Least of repeats; the products are repeated before
each row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.scale.common import (
    SMALL,
    Points,
    Problem,
    Row,
    apart,
    best,
    matmul_rates,
    parser,
    show,
    write_part,
)
from laplace_metric import LaplaceEmbedder
from laplace_metric.traces import variance_trace

TARGET = 2.0
CASES = (("euclidean", False), ("arccos", False), ("arccos", True))


@dataclass(frozen=True)
class Budget:
    """Items of the gallery, points of the fit, repeats."""

    problem: Problem
    n: int = 1_000_000
    fit: int = 20_000
    repeats: int = 5
    product: int = 2_048


BUDGETS = {"full": Budget(Problem()), "smoke": Budget(SMALL, 2_000, 500, 2, 128)}


def gallery_cost(structure: str, budget: Budget) -> dict[str, list[Row]]:
    """Rows of one structure."""
    x, _ = Points(budget.n, budget.problem).together()
    return {"rows": [row(structure, *case, x, budget) for case in CASES]}


def row(structure: str, distance: str, known: bool, x: Tensor, budget: Budget) -> Row:
    """One geometry; ``known``: the embeddings are given."""
    model = budget.problem.model()
    options = {"hessian": "positives", "structure": structure, "distance": distance}
    embedder = LaplaceEmbedder(model, **options)  # type: ignore[arg-type]
    embedder.fit(Points(budget.fit, budget.problem), progress=False)
    fit, spherical = embedder.fitted_, distance == "arccos"
    raw = fit.jacobian.raw(x) if known else None
    call = lambda rows=x, z=raw: variance_trace(  # noqa: E731
        fit.jacobian, fit.posterior, rows, z, spherical=spherical
    )
    products = product_seconds(model.weight.detach(), x, budget.repeats)  # type: ignore[operator]
    taken = best(call, budget.repeats)
    few = x[:1_000]
    off = call(few, None if raw is None else raw[:1_000]) / embedder(few).uncertainty - 1
    return {
        "structure": structure,
        "geometry": "sphere" if spherical else "raw",
        "embeddings_known": known,
        "n": len(x),
        "seconds": taken,
        **products,
        "ratio": taken / products["product_seconds"],
        "ratio_to_new_memory": taken / products["product_to_new_memory_seconds"],
        "largest_relative_difference": float(off.abs().max()),
    }


def product_seconds(weight: Tensor, x: Tensor, repeats: int) -> dict[str, float]:
    """Of one plain product."""
    out = torch.empty(len(x), len(weight))
    return {
        "product_seconds": best(lambda: torch.mm(x, weight.T, out=out), repeats),
        "product_to_new_memory_seconds": best(lambda: torch.mm(x, weight.T), repeats),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    budget = BUDGETS[options.budget]
    budget = replace(budget, n=options.size or budget.n)
    rates = apart(options, matmul_rates, budget.product)
    parts = [apart(options, gallery_cost, structure, budget) for structure in ("diag", "kron")]
    rows = [show(line) for part in parts for line in part["rows"]]
    write_part("gallery", {"rates": rates, "target": TARGET, "rows": rows}, options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("gallery", __doc__)
    found.add_argument("--size", type=int, metavar="N")
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
