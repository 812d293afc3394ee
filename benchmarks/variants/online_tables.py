"""The tables of online Laplace against post-hoc fits, on test images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.records import markdown, read_record, thousandths
from benchmarks.variants.online import approximation

Row = dict[str, Any]
METRICS: dict[str, Callable[[Row], float]] = {
    "recall@1 ↑": lambda row: float(row["recall@1"]),
    "ECE ↓": lambda row: float(row.get("retrieval_ece", float("nan"))),
    "AUSC ↑": lambda row: float(row["ausc"]),
    "AUROC mnist ↑": lambda row: float(row["out"]["mnist"]["auroc"]),
    "AUROC kmnist ↑": lambda row: float(row["out"]["kmnist"]["auroc"]),
}


def chosen(size: int) -> str:
    """What was chosen, over the seeds, on test images; below, online less post-hoc in pairs."""
    rows = [row for row in read_record("online")["rows"] if row["embedding_size"] == size]
    names = dict.fromkeys(row["method"] for row in rows)
    kinds = {row["method"]: row["kind"] for row in rows}
    ranked = sorted(names, key=lambda name: ("plain", "online", "post-hoc").index(kinds[name]))
    lines = [[name, *(_cell(values(rows, name, read)) for read in METRICS.values())]
             for name in ranked]  # fmt: skip
    base = next(name for name in ranked if kinds[name] == "plain")
    for name in ranked:
        if kinds[name] == "online":
            differences = {key: less(rows, name, base, read) for key, read in METRICS.items()}
            lines.append(
                [
                    f"{name}, less plain",
                    _cell(differences["recall@1 ↑"]),
                    *[""] * (len(METRICS) - 1),
                ]
            )
    for name, other in pairs(ranked, kinds):
        cells = [_cell(less(rows, name, other, read)) for read in METRICS.values()]
        lines.append([f"{name}, less {other}", *cells])
    return markdown(["test images, three seeds", *METRICS], lines)


def pairs(names: Sequence[str], kinds: dict[str, str]) -> list[tuple[str, str]]:
    """Each online line with the post-hoc one of its approximation."""
    online, post_hoc = ([n for n in names if kinds[n] == kind] for kind in ("online", "post-hoc"))
    return [(a, b) for a in online for b in post_hoc if approximation(a) == approximation(b)]


def values(rows: Sequence[Row], name: str, read: Callable[[Row], float]) -> list[float]:
    """Of a line, seed by seed."""
    of = sorted((row for row in rows if row["method"] == name), key=lambda row: int(row["seed"]))
    return [read(row) for row in of]


def less(rows: Sequence[Row], name: str, other: str, read: Callable[[Row], float]) -> list[float]:
    """Differences of two lines, seed by seed."""
    both = zip(values(rows, name, read), values(rows, other, read), strict=True)
    return [a - b for a, b in both]


def _cell(numbers: Sequence[float]) -> str:
    summary = mean_and_standard_error(numbers)
    if summary.mean != summary.mean:
        return ""
    return f"{thousandths(summary.mean)} ± {thousandths(summary.standard_error)}"


TABLES = {f"online-{size}": partial(chosen, size) for size in (3, 64)}
