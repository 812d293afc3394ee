"""Tables of a collected record, for the page and, under the same rules, for GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.records import markdown, thousandths
from benchmarks.report.reading import Part, Record, Row, Summary, described, known, mean_of, summary

UNDEFINED = "n/a"
ARROWS = {1: "\u2191", -1: "\u2193", 0: ""}


@dataclass(frozen=True)
class Cell:
    """A number, what stands under it, and whether it is bold."""

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Columns have a name, an arrow and a meaning; lines a name and cells."""

    columns: list[tuple[str, str, str]]
    lines: list[tuple[str, list[Cell]]]
    note: str = ""


def quality(part: Part, keys: Sequence[str]) -> Table:
    """Methods by metrics, means over the seeds."""
    bold = {key: part.bold(key) for key in keys}
    lines = [
        (name, [Cell(str(len({row["seed"] for row in rows})))]
         + [cell(summary(rows, key), name in bold[key]) for key in keys])
        for name, rows in part.methods.items()
    ]  # fmt: skip
    kinds = [described(key) for key in keys]
    columns = [(kind.name, ARROWS[kind.direction], kind.meaning) for kind in kinds]
    return Table([("seeds", "", "trainings"), *columns], lines, _crowded(part, keys, bold))


def cell(over_seeds: Summary, best: bool = False) -> Cell:
    """Mean and standard error, or the interval of a single seed."""
    if not over_seeds.seeds:
        return Cell(UNDEFINED)
    note = ""
    if known(over_seeds.error):
        note = f"\u00b1 {over_seeds.error:.3f}"
    elif known(over_seeds.low + over_seeds.high):
        note = f"{over_seeds.low:.3f} to {over_seeds.high:.3f}"
    return Cell(f"{over_seeds.mean:.3f}".replace("-", "\u2212"), note.replace("-", "\u2212"), best)


def _crowded(part: Part, keys: Sequence[str], bold: dict[str, list[str]]) -> str:
    compared = part.record["comparisons"].get(part.task, {})
    none = [described(k).name for k in keys if compared.get(k, {}).get("leaders") and not bold[k]]
    if not none:
        return ""
    return f"Nothing is bold where that holds for more than half of them: {'; '.join(none)}."


def cost(part: Part) -> Table:
    """What a fit and a query take, and what is kept."""
    columns = [
        ("fit, CPU s", ARROWS[-1], "training or fit after it, CPU seconds"),
        ("query, CPU ms", ARROWS[-1], "embedding and uncertainty of one query"),
        ("peak MB", ARROWS[-1], "largest memory of the process during the fit"),
        ("numbers added", ARROWS[-1], "kept beyond the network's own"),
    ]
    return Table(columns, [(name, costs(rows)) for name, rows in part.methods.items()])


def costs(rows: Sequence[Row]) -> list[Cell]:
    """Fit, query, memory and numbers of one method, means over the seeds."""
    fit = mean_of(rows, lambda row: row["cost"]["fit"]["cpu_seconds"])
    peak = mean_of(rows, lambda row: row["cost"]["fit"]["peak_mb"])
    added = mean_of(rows, lambda row: row["cost"]["extra_parameters"])
    shown = (f"{fit:.2g}" if fit < 100 else f"{fit:,.0f}", f"{query_ms(rows):.2g}",
             f"{peak:,.0f}", f"{added:,.0f}")  # fmt: skip
    return [Cell(UNDEFINED if text == "nan" else text) for text in shown]


def query_ms(rows: Sequence[Row]) -> float:
    """CPU milliseconds of one query."""
    return mean_of(
        rows, lambda row: 1e3 * row["cost"]["queries"]["cpu_seconds"] / row["cost"]["queries"]["n"]
    )


def quality_table(
    record: Record,
    task: str,
    metrics: Sequence[str],
    methods: Sequence[str] | None = None,
    *,
    errors: bool = True,
) -> str:
    """Methods by metrics: mean ± standard error in thousandths, leaders bold.

    A single seed stands without an error. Nothing is bold where more than half of the methods
    lead, which is judged on all methods of the task, shown or not.

    Parameters
    ----------
    metrics : keys such as ``"r_auroc"``
    methods : names; default: all of the task, as in the record
    errors : whether standard errors are shown
    """
    part = Part(record, task)
    of, bold = part.methods, {key: part.bold(key) for key in metrics}
    lines = [
        [name, *(_cell(summary(of[name], key), name in bold[key], errors) for key in metrics)]
        for name in (of if methods is None else methods)
    ]
    kinds = [described(key) for key in metrics]
    return markdown(["method", *(f"{k.name} {ARROWS[k.direction]}".strip() for k in kinds)], lines)


def _cell(over_seeds: Summary, bold: bool, error: bool) -> str:
    if not over_seeds.seeds:
        return UNDEFINED
    text = thousandths(over_seeds.mean)
    if error and known(over_seeds.error):
        text += f" ± {thousandths(over_seeds.error)}"
    return f"**{text}**" if bold else text
