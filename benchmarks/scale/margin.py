"""A finite margin needs every pair: ``python -m benchmarks scale --pieces margin``.

Exact at several N (arccos, fixed, diagonal, margin 1, D = Z = 128): time, and ``4 N^2 Z``
operations a second as a share of the same process's float32 product. Beside it the class sums of
no margin, which are linear in N. Reference subsets: time and standard error at large N, and their
actual error against the exact curvature in units of that standard error where it is known.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.scale.common import Points, Row, apart, show, write_piece
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import matmul_rates, seconds, slope
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._structures import DiagCurvature
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.models._store import FeatureStore

MARGIN, AIM = 1.0, 1_000_000


def fit_cost(n: int, margin: float | None, size: ScaleSize) -> Row:
    """One exact fit of points in memory."""
    problem = size.problem
    data = list(Points(n, problem))
    embedder = LaplaceEmbedder(problem.model(), structure="diag", margin=margin)
    embedder.fit(list(Points(1_000, problem)), progress=False)  # libraries are loaded
    wall, cpu = seconds(lambda: embedder.fit(data, progress=False))
    row = {"n": n, "margin": margin, "wall_seconds": wall, "cpu_seconds": cpu}
    if margin is None:
        return row
    rate = matmul_rates(size.product)["float32_gflops"]
    achieved = 4 * n**2 * problem.n_outputs / wall / 1e9
    return {**row, "gflops": achieved, "matmul_gflops": rate, "share": achieved / rate}


def reference_cost(n: int, reference: int, size: ScaleSize) -> Row:
    """One estimate: time, and its standard error beside the curvature."""
    data = list(Points(n, size.problem))
    embedder = LaplaceEmbedder(size.problem.model(), structure="diag", margin=MARGIN)
    options = {"reference": reference, "seed": torch.Generator().manual_seed(0)}
    wall, cpu = seconds(lambda: embedder.fit(data, progress=False, **options))  # type: ignore[arg-type]
    hessian = embedder.hessian_
    assert hessian.standard_error is not None
    relative = float(hessian.standard_error.norm() / hessian.eigenvalues.norm())
    row = {"n": n, "reference": reference, "wall_seconds": wall, "cpu_seconds": cpu}
    return {**row, "relative_standard_error": relative}


def errors(n: int, references: Sequence[int], size: ScaleSize) -> list[Row]:
    """Root mean square of (estimate - exact) / standard error, over parameters and draws.

    The errors of the parameters of one draw move together, so several are drawn. The standard error
    is that of 8 groups: 1.18 is expected, as of Student's t with 7 degrees.
    """
    exact = curvature(n, None, size).values
    rows = []
    for reference in references:
        drawn = [curvature(n, reference, size, seed) for seed in range(size.draws)]
        off = [float((one.values - exact).norm() / exact.norm()) for one in drawn]
        apart = []
        for one in drawn:
            assert one.standard_error is not None
            free = one.standard_error > 0
            apart.append(rms(((one.values - exact) / one.standard_error)[free]))
        row = {"n": n, "reference": reference, "in_standard_errors": rms(apart)}
        rows.append(show({**row, "in_each_draw": apart, "relative_error": rms(off)}))
    return rows


def curvature(n: int, reference: int | None, size: ScaleSize, seed: int = 0) -> DiagCurvature:
    """Before any positivity, with signs."""
    model = size.problem.model()
    head = jacobian_of(model, size.problem.n_outputs)
    contrast = ContrastiveLoss.of("arccos", "fixed", normalized=False, margin=MARGIN)
    store, generator = FeatureStore.of(*Points(n, size.problem).together()), torch.Generator()
    sums = all_pairs_curvature(store, head, contrast, "diag", reference=reference,
                               seed=generator.manual_seed(seed))  # fmt: skip
    assert isinstance(sums, DiagCurvature)
    return sums


def rms(values: Tensor | Sequence[float]) -> float:
    """Root mean square."""
    return float(torch.as_tensor(values, dtype=torch.float64).square().mean().sqrt())


def run(options: Namespace) -> None:
    """Exact fits and class sums, then estimates and their errors."""
    size = SCALE["margin"][options.size]
    cases = [(n, margin) for margin in (MARGIN, None) for n in options.n or size.n]
    rows = [show(apart(size, fit_cost, *case, size)) for case in cases]
    exact, sums = ([r for r in rows if (r["margin"] is None) == none] for none in (False, True))
    hours = exact[-1]["wall_seconds"] * (AIM / exact[-1]["n"]) ** 2 / 3600  # by N^2: not measured
    of = {"exact": exact, "class sums": sums}
    estimates = [
        show(apart(size, reference_cost, size.estimated, reference, size))
        for reference in size.references
    ]
    content = {
        **of,
        "reference": estimates,
        "errors": errors(size.compared, size.references, size),
        "slopes": {k: slope(*([x[i] for x in v] for i in ("n", "wall_seconds")))
                   for k, v in of.items()},
        "extrapolated_exact_hours": {"n": AIM, "hours": hours},
    }  # fmt: skip
    write_piece("margin", content, options)
