"""A picture of the first queries with what they found."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laplace_metric.calibration import Answers
from laplace_metric.io import write_atomically
from laplace_metric.search import SearchResult


def write_picture(
    path: Path,
    result: SearchResult,
    queries: Sequence[Any],
    items: Sequence[Any],
    answers: Answers | None = None,
) -> None:
    """Write a PNG of the first queries with what they found, and what a rule decides."""
    file = io.BytesIO()
    figure = result.figure(queries, items, answers=answers)
    figure.savefig(file, format="png", dpi=110, facecolor="white")
    write_atomically(path, file.getvalue())
