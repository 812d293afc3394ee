"""The content of a report, and the rows of its tables, which terminal and web page share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from laplace_metric.datasets import ImageSet
from laplace_metric.evaluation import MethodResult, mean_and_standard_error


@dataclass(frozen=True)
class Section:
    """Methods compared on one set of queries.

    Parameters
    ----------
    title, intro : str
    results : dict of method name to tuple of MethodResult
        The same queries and out-of-distribution sets for all; one result for each seed. Figures
        show the first, tables the mean over all.
    images : ImageSet
        The queries, row by row as they were evaluated.
    """

    title: str
    intro: str
    results: dict[str, tuple[MethodResult, ...]]
    images: ImageSet

    @property
    def first(self) -> dict[str, MethodResult]:
        """The first seed's results."""
        return {name: results[0] for name, results in self.results.items()}


@dataclass(frozen=True)
class Report:
    """A whole report.

    Parameters
    ----------
    title, lead : str
    facts : dict of str to str
        How the numbers came about, shown at the end.
    sections : tuple of Section
    spread : str
        What stands under the numbers of the tables.
    highlight : str
        The method whose most and least certain queries are shown.
    """

    title: str
    lead: str
    facts: dict[str, str]
    sections: tuple[Section, ...]
    spread: str
    highlight: str


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
    for out in next(iter(results.values()))[0].ood:
        rows += _detection_rows(results, out)
    return rows


def _detection_rows(results: Results, out: str) -> list[Row]:
    group = f"Noticing {out}"

    def interval(result: MethodResult) -> str:
        ends = result.ood[out].auroc
        return f"{ends.low:.3f} to {ends.high:.3f}"

    return [
        _row(results, group, "AUROC", "↑", lambda r: r.ood[out].auroc.estimate, interval),
        _row(results, group, "AUPRC", "↑", lambda r: r.ood[out].auprc),
        _row(results, group, "FPR at 95% TPR", "↓", lambda r: r.ood[out].fpr95),
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


SHORT = len("± 0.000")  # longer notes stand under their number


def terminal_table(section: Section) -> Table:
    """A `rich` table of a section; the best value of a row is bold and has a star."""
    table = Table(title=section.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("", max_width=22)
    for method in section.results:
        table.add_column(method, justify="right", no_wrap=True)
    group = None
    for row in table_rows(section.results):
        if row.group != group:
            group = row.group
            table.add_row(f"[dim]{group}[/dim]")
        table.add_row(f"  {row.name} {row.arrow}", *(_marked(cell) for cell in row.cells))
    return table


def _marked(cell: Cell) -> str:
    text = f"[bold]{cell.text}*[/bold]" if cell.best else f"{cell.text} "
    if not cell.note:
        return text
    gap = " " if len(cell.note) <= SHORT else "\n"
    return f"{text}{gap}[dim]{cell.note}[/dim]"
