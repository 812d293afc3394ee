"""A page for every baseline: its formula, its calls, its cost, and how it did on every task."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.methods import BASE
from benchmarks.records import markdown
from benchmarks.report import three_numbers
from benchmarks.report.method_table import METHOD_NOTES, relative
from benchmarks.report.three_numbers import CASES, Case, Values

BASELINES = Path(__file__).resolve().parents[2] / "baselines"
COSTS = Case("url", "cifar10-unseen", "CIFAR-10, classes never trained on", True)
TASKS = (
    *CASES,
    COSTS,
    Case("url", "cub", "birds, classes never trained on", True),
)
FILES = tuple(dict.fromkeys(note.file for note in METHOD_NOTES.values() if note.file))
"""The modules that have a page."""

HEAD = """# {title}

{predicts}. Source: {source}. Its tests: `tests/baselines/{tests}.py`. \
[All baselines](README.md).

## The method

::: baselines.{file}
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false
      show_if_no_docstring: false
      filters: ["!^_"]
"""
WORDS = """## How it did

Means and standard errors over three seeds; in brackets the place among the methods that were \
measured on the task. LAM is Warburg et al. 2023, URL Kirchhof et al. 2023b. \
[Protocols, and what every column means](../benchmarks/README.md).
"""


class Column(NamedTuple):
    """A name, and which metrics of a task are averaged for it."""

    name: str
    begins: str


COLUMNS = (
    Column("recall@1", "recall@1"),
    Column("R-AUROC", "r_auroc"),
    Column("OOD AUROC", "auroc "),
    Column("new classes, AUROC", "new classes"),
)


def method_page(file: str) -> str:
    """The page of one module, in Markdown with references of mkdocstrings."""
    names = [name for name, note in METHOD_NOTES.items() if note.file == file]
    note = METHOD_NOTES[names[0]]
    head = HEAD.format(
        title=title(file),
        predicts=f"Predicts {note.predicts}; uncertainty: {note.uncertainty}",
        source=note.source,
        tests=note.tests,
        file=file,
    )
    return "\n".join([head, WORDS, *(measured(name) for name in names)])


def title(file: str) -> str:
    """What the module says it is, up to the first mark: ``Expected likelihood kernels``."""
    source = (BASELINES / f"{file}.py").read_text()
    words = ast.get_docstring(ast.parse(source)) or file
    return re.split(r"\s*[(:.,]| of Scott", words)[0]


def measured(name: str) -> str:
    """A table: the tasks that have every seed of the method."""
    lines = []
    for case in TASKS:
        cells = [place(case, name, column) for column in COLUMNS]
        if any(cells):
            lines.append([case.title, *(cell or "" for cell in cells)])
    if not lines:
        return f"**{name}**: not measured.\n"
    kept = [0, *(i for i in range(1, len(COLUMNS) + 1) if any(line[i] for line in lines))]
    header = ["task", *(column.name for column in COLUMNS)]
    table = markdown([header[i] for i in kept], [[line[i] for i in kept] for line in lines])
    return f"**{name}**. {cost(name)}\n\n{table}\n"


def cost(name: str) -> str:
    """A sentence: CPU time over that of plain metric learning on the same features.

    What is put on a trained network adds to its training.
    """
    rows = _rows(COSTS)
    of = {method: [r for r in rows if r["method"] == method] for method in (BASE, name)}
    if not of[name]:
        return ""
    added, training, query = relative(of, name)
    takes = (
        f"fit adds {training[2:]}" if training.startswith("+ ") else f"training takes {training}"
    )
    return f"Its {takes}, a query {query} that of plain metric learning; {added} numbers added."


def place(case: Case, name: str, column: Column) -> str:
    """Mean ± standard error, and the place among the methods; empty where it was not measured."""
    rows = _rows(case)
    metrics = [key for key in rows[0]["metrics"] if key.startswith(column.begins)]
    of = three_numbers.values(rows, metrics) if metrics else {}
    if name not in of:
        return ""
    rivals: Sequence[Values] = [one for one in of.values() if _is_one_method(one.method)]
    better = sum(one.mean > of[name].mean for one in rivals)
    return f"{of[name].text} ({better + 1} of {len(rivals)})"


_rows = cache(three_numbers.rows_of)


def _is_one_method(name: str) -> bool:
    return name not in (three_numbers.NEAR, three_numbers.FAR)
