"""A record with a row for each problem, measured one after the other."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.records import folder_of, read_record, write_record
from benchmarks.retrieval.problems import PROBLEMS, Source
from laplace_metric.errors import LaplaceMetricWarning, UnknownNameError

Row = dict[str, Any]
Problems = Mapping[str, Callable[[Source], Any]]


def record_rows(
    options: Namespace,
    record: str,
    measured: Callable[[Any], Row],
    problems: Problems = PROBLEMS,
) -> None:
    """Problem by problem; each takes its place in ``record``, and other rows stay.

    Raises
    ------
    UnknownNameError
        For a problem that there is not.
    """
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    folder = folder_of(options)
    for name in options.problems or problems:
        if name not in problems:
            raise UnknownNameError("problems", name, tuple(problems))
        row = measured(problems[name](Source(options.data, options.cache)))
        there = (folder / f"{record}.json").is_file()
        old = read_record(record, folder)["rows"] if there else []
        rows = {r["problem"]: r for r in [*old, row]}
        write_record(record, {"rows": [rows[n] for n in problems if n in rows]}, folder)
        print(f"{name}: {row}", flush=True)
