"""What needs no training: ``python -m benchmarks papers --data DIR``.

Measures what follows from the papers' equations and from URL's published runs, in seconds, and
prints every claim of a paper with our number and a verdict. All other numbers come from the records
of other pieces.
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from benchmarks.datasets.remotes import VARIABLE
from benchmarks.papers import closed_forms, published
from benchmarks.records import folder_of, write_record
from benchmarks.report.claims import tables
from laplace_metric.errors import InputError

RECORD = "papers"


def run(options: Namespace) -> None:
    """Write ``papers.json``, and print the claims.

    Raises
    ------
    InputError
        If no data folder is named.
    """
    data = options.data or os.environ.get(VARIABLE)
    if not data:
        raise InputError(f"--data is not given: name the folder with {published.FILE}.")
    rows = [
        *({"source": "published runs", **row} for row in published.rows(Path(data))),
        *({"source": "closed form", **row} for row in closed_forms.rows()),
    ]
    print(write_record(RECORD, {"rows": rows}, folder_of(options)).name)
    print(tables.printed())
