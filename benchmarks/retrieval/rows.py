"""A record with a row for each problem, measured one after the other."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.records import Store, folder_of, read_record, write_record
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
    """Problem by problem, what is finished from the cache; each takes its place in ``record``.

    Raises
    ------
    UnknownNameError
        For a problem that there is not.
    """
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    folder, store = folder_of(options), Store(options.cache / record)
    for name in options.problems or problems:
        if name not in problems:
            raise UnknownNameError("problems", name, tuple(problems))
        if not store.has(name):
            store.write(measured(problems[name](Source(options.data, options.cache))), name)
        row = store.read(name)
        row.pop("environment")
        there = (folder / f"{record}.json").is_file()
        old = read_record(record, folder)["rows"] if there else []
        rows = {r["problem"]: r for r in [*old, row]}
        write_record(record, {"rows": [rows[n] for n in problems if n in rows]}, folder)
        print(f"{name}: {row}", flush=True)
