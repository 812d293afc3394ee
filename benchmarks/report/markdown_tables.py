"""GitHub tables of a collected record: for the pages, under the same rules as the HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.markdown import markdown, thousandths
from benchmarks.report.cells import ARROWS, UNDEFINED, costs
from benchmarks.report.reading import Part, Record, Summary, described, known, summary


def quality_table(
    record: Record, task: str, metrics: Sequence[str], methods: Sequence[str] | None = None
) -> str:
    """Methods by metrics: mean ± standard error in thousandths, leaders bold.

    A single seed stands without an error. Nothing is bold where more than half of the methods
    lead, which is judged on all methods of the task, shown or not.

    Parameters
    ----------
    metrics : keys such as ``"r_auroc"``
    methods : names; default: all of the task, as in the record
    """
    part = Part(record, task)
    of, bold = part.methods, {key: part.bold(key) for key in metrics}
    lines = [
        [name, *(_cell(summary(of[name], key), name in bold[key]) for key in metrics)]
        for name in (of if methods is None else methods)
    ]
    kinds = [described(key) for key in metrics]
    return markdown(["method", *(f"{k.name} {ARROWS[k.direction]}".strip() for k in kinds)], lines)


def cost_table(record: Record, task: str, methods: Sequence[str] | None = None) -> str:
    """What a fit and a query take, and what is kept."""
    of = Part(record, task).methods
    header = ["method", "fit, CPU s", "query, CPU ms", "peak MB", "numbers added"]
    shown = of if methods is None else methods
    return markdown(header, [[name, *(cell.text for cell in costs(of[name]))] for name in shown])


def _cell(found: Summary, bold: bool) -> str:
    if not found.seeds:
        return UNDEFINED
    text = thousandths(found.mean)
    if known(found.error):
        text += f" ± {thousandths(found.error)}"
    return f"**{text}**" if bold else text
