"""Every method in words, with its measured cost beside plain metric learning."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import markdown
from benchmarks.methods import BASE, METHODS
from benchmarks.methods.words import WORDS
from benchmarks.report.statistics import Row


def methods(record: dict[str, Any], task: str) -> str:
    """A line for each method that was measured on the task."""
    rows = {name: [r for r in record["rows"] if (r["task"], r["method"]) == (task, name)]
            for name in WORDS}  # fmt: skip
    lines = [
        [link(name), w.source, w.predicts, w.uncertainty, *relative(rows, name), tests(w.tests)]
        for name, w in WORDS.items()
        if rows[name]
    ]
    header = ["method", "source", "predicts", "uncertainty", "numbers added"]
    return markdown([*header, "training", "query", "tests"], lines)


def link(name: str) -> str:
    """The method's name, linked to its file."""
    file = WORDS[name].file
    return f"[{name}]({file}.py)" if file else name


def tests(name: str) -> str:
    """Where its tests are."""
    if name.endswith("/"):
        return f"[{name}](../tests/{name})"
    return f"[{name}](../tests/baselines/{name}.py)"


def relative(rows: dict[str, list[Row]], name: str) -> tuple[str, str, str]:
    """Numbers added, and CPU time over that of metric learning (fits on top of it: plus)."""

    def least(method: str, part: str) -> float:
        return min(float(row["cost"][part]["cpu_seconds"]) for row in rows[method])

    training = least(name, "fit") / least(BASE, "fit")
    query = least(name, "queries") / least(BASE, "queries")
    added = rows[name][0]["cost"]["added"]
    return (
        f"{added:,}",
        f"{'+ ' if METHODS[name].post_hoc else ''}{training:.2f} x",
        f"{query:.1f} x",
    )
