"""A finite margin needs every pair: ``python -m benchmarks.scale.margin``.

Exact at several N (arccos, fixed, diagonal, margin 1, D = Z = 128): time, and ``4 N^2 Z``
operations a second as a share of the same process's float32 product. Beside it the class sums of
no margin, which are linear in N. Reference subsets: time and standard error at large N, and their
actual error against the exact curvature in units of that standard error where it is known.
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
    matmul_rates,
    parser,
    seconds,
    show,
    slope,
    write_part,
)
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss, all_pairs_curvature
from laplace_metric.curvature.structures import DiagCurvature
from laplace_metric.models.features import FeatureStore
from laplace_metric.models.jacobians import jacobian_of

MARGIN, AIM = 1.0, 1_000_000


@dataclass(frozen=True)
class Budget:
    """N of the exact curvature, of the estimates, and at which both are compared."""

    problem: Problem
    exact: tuple[int, ...] = (10_000, 30_000, 100_000)
    large: int = AIM
    compared: int = 30_000
    references: tuple[int, ...] = (1_000, 4_000, 16_000)
    draws: int = 8
    product: int = 2_048


BUDGETS = {
    "full": Budget(Problem(128, 128, common=2**0.5)),
    "smoke": Budget(replace(SMALL, common=2**0.5), (400, 800), 2_000, 800, (50, 200), 8, 128),
}


def fit_cost(n: int, margin: float | None, budget: Budget) -> Row:
    """One exact fit of points in memory."""
    problem = budget.problem
    data = list(Points(n, problem))
    embedder = LaplaceEmbedder(problem.model(), structure="diag", margin=margin)
    embedder.fit(list(Points(1_000, problem)), progress=False)  # libraries are loaded
    wall, cpu = seconds(lambda: embedder.fit(data, progress=False))
    row = {"n": n, "margin": margin, "wall_seconds": wall, "cpu_seconds": cpu}
    if margin is None:
        return row
    rate = matmul_rates(budget.product)["float32_gflops"]
    achieved = 4 * n**2 * problem.n_outputs / wall / 1e9
    return {**row, "gflops": achieved, "matmul_gflops": rate, "share": achieved / rate}


def reference_cost(n: int, reference: int, budget: Budget) -> Row:
    """One estimate: time, and its standard error beside the curvature."""
    data = list(Points(n, budget.problem))
    embedder = LaplaceEmbedder(budget.problem.model(), structure="diag", margin=MARGIN)
    options = {"reference": reference, "generator": torch.Generator().manual_seed(0)}
    wall, cpu = seconds(lambda: embedder.fit(data, progress=False, **options))  # type: ignore[arg-type]
    found = embedder.hessian_
    assert found.standard_error is not None
    relative = float(found.standard_error.norm() / found.eigenvalues.norm())
    row = {"n": n, "reference": reference, "wall_seconds": wall, "cpu_seconds": cpu}
    return {**row, "relative_standard_error": relative}


def errors(n: int, references: Sequence[int], budget: Budget) -> list[Row]:
    """Root mean square of (estimate - exact) / standard error, over parameters and draws.

    The errors of the parameters of one draw move together, so several are drawn. The standard error
    is that of 8 groups: 1.18 is expected, as of Student's t with 7 degrees.
    """
    exact = curvature(n, None, budget).values
    rows = []
    for reference in references:
        found = [curvature(n, reference, budget, seed) for seed in range(budget.draws)]
        off = [float((one.values - exact).norm() / exact.norm()) for one in found]
        apart = [deviation(one, exact) for one in found]
        row = {"n": n, "reference": reference, "in_standard_errors": rms(apart)}
        rows.append(show({**row, "in_each_draw": apart, "relative_error": rms(off)}))
    return rows


def deviation(found: DiagCurvature, exact: Tensor) -> float:
    """Root mean square over the parameters of one draw."""
    assert found.standard_error is not None
    kept = found.standard_error > 0
    return rms(((found.values - exact) / found.standard_error)[kept])


def curvature(n: int, reference: int | None, budget: Budget, seed: int = 0) -> DiagCurvature:
    """Before any positivity, with signs."""
    model = budget.problem.model()
    head = jacobian_of(model, budget.problem.n_outputs)
    contrast = ContrastiveLoss.of("arccos", "fixed", normalized=False, margin=MARGIN)
    store, generator = FeatureStore.of(*Points(n, budget.problem).together()), torch.Generator()
    sums = all_pairs_curvature(store, head, contrast, "diag", reference=reference,
                               generator=generator.manual_seed(seed))  # fmt: skip
    assert isinstance(sums, DiagCurvature)
    return sums


def rms(values: Tensor | Sequence[float]) -> float:
    """Root mean square."""
    return float(torch.as_tensor(values, dtype=torch.float64).square().mean().sqrt())


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    budget = BUDGETS[options.budget]
    cases = [(n, margin) for margin in (MARGIN, None) for n in options.sizes or budget.exact]
    rows = [show(apart(options, fit_cost, *case, budget)) for case in cases]
    exact, sums = ([r for r in rows if (r["margin"] is None) == none] for none in (False, True))
    of = {"exact": exact, "class sums": sums}
    estimates = [
        show(apart(options, reference_cost, budget.large, reference, budget))
        for reference in budget.references
    ]
    content = {
        **of,
        "reference": estimates,
        "errors": errors(budget.compared, budget.references, budget),
        "slopes": {k: slope(*([x[i] for x in v] for i in ("n", "wall_seconds")))
                   for k, v in of.items()},
        "extrapolated_exact_hours": {"n": AIM, "hours": hours(exact[-1])},
    }  # fmt: skip
    write_part("margin", content, options)


def hours(row: Row) -> float:
    """What the largest exact fit would take at N = 1,000,000, scaled by N^2: not measured."""
    return float(row["wall_seconds"] * (AIM / row["n"]) ** 2 / 3600)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("margin", __doc__)
    found.add_argument("--sizes", type=int, nargs="+", metavar="N", help="of the exact fits")
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
