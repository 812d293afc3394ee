"""The rows of the comparison table, shared by terminal and web page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laplace_metric.evaluation import mean_and_standard_error
from laplace_metric.evaluation_protocol import MethodResult

Results = dict[str, tuple[MethodResult, ...]]
Value = Callable[[MethodResult], float]
UNDEFINED = "n/a"


@dataclass(frozen=True)
class Cell:
    """One number as text, what stands under it, and whether it is the best of its row."""

    text: str
    note: str
    best: bool


@dataclass(frozen=True)
class Row:
    """One metric for all methods; ``group`` is the heading that it stands under.

    ``arrow`` says which direction is good; it is empty where the row is for orientation only.
    """

    group: str
    name: str
    arrow: str
    cells: tuple[Cell, ...]


def table_rows(results: Results) -> list[Row]:
    """Every metric of `evaluate_method`, best values marked (ties at 3 digits all of them).

    The number is the mean over the seeds; under it their standard error, or the bootstrap
    interval where there is one seed only.
    """
    errors, guess = "Finding its own errors", ""
    rows = [
        _row(results, "Retrieval", "recall@1", "↑", lambda r: r.recall.value),
        _row(results, "Retrieval", "mAP@5", "↑", lambda r: r.mean_ap.value),
        _row(results, errors, "AUSC", "↑", lambda r: r.sparsification.ausc),
        _row(results, errors, "… of random order", guess, lambda r: r.sparsification.ausc_random),
        _row(results, errors, "… of the oracle", guess, lambda r: r.sparsification.ausc_oracle),
        _row(results, errors, "R-AUROC", "↑", lambda r: r.r_auroc),
        _row(results, "Honest confidence", "retrieval ECE", "↓", lambda r: r.calibration.ece),
    ]
    for out in next(iter(results.values()))[0].out:
        rows += _detection_rows(results, out)
    return rows


def _detection_rows(results: Results, out: str) -> list[Row]:
    group = f"Noticing {out}"

    def interval(result: MethodResult) -> str:
        ends = result.out[out].auroc
        return f"{ends.low:.3f} to {ends.high:.3f}"

    return [
        _row(results, group, "AUROC", "↑", lambda r: r.out[out].auroc.estimate, interval),
        _row(results, group, "AUPRC", "↑", lambda r: r.out[out].auprc),
        _row(results, group, "FPR at 95% TPR", "↓", lambda r: r.out[out].fpr95),
    ]


def _row(
    results: Results,
    group: str,
    name: str,
    arrow: str,
    value: Value,
    single: Callable[[MethodResult], str] = lambda _: "",
) -> Row:
    summaries = [_summary([value(r) for r in runs]) for runs in results.values()]
    known = [float(text) for text, _ in summaries if text != UNDEFINED]
    choose = {"↑": max, "↓": min}.get(arrow)
    best = f"{choose(known):.3f}" if choose and known else None
    cells = (
        Cell(text, single(runs[0]) if len(runs) == 1 else note, text == best)
        for (text, note), runs in zip(summaries, results.values(), strict=True)
    )
    return Row(group, name, arrow, tuple(cells))


def _summary(values: Sequence[float]) -> tuple[str, str]:
    """Mean over the seeds that define the metric, and the standard error of two or more."""
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return UNDEFINED, ""
    if len(defined) == 1:
        return f"{defined[0]:.3f}", ""
    summary = mean_and_standard_error(defined)
    return f"{summary.mean:.3f}", f"± {summary.standard_error:.3f}"
