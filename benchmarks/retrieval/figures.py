"""The record as figures: ``python -m benchmarks retrieval --pieces figures``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.plots import (
    FIGURES,
    Figure,
    abstention_plot,
    promises_plot,
    reliability_plots,
    save_png,
)
from benchmarks.records import RESULTS, folder_of, read_record
from benchmarks.retrieval.split import ALPHAS, PROMISES, SHARES
from benchmarks.retrieval.tables import SCORES


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Each by its name."""
    return {
        "abstention": abstention_plot(rows, SCORES, SHARES),
        "reliability": reliability_plots(rows),
        "promises": promises_plot(rows, PROMISES, [1 - alpha for alpha in ALPHAS]),
    }


def run(options: Namespace) -> None:
    """Beside the record, unless it is that of the results."""
    folder = folder_of(options)
    target = FIGURES if folder == RESULTS else folder
    for name, figure in figures(read_record("retrieval", folder)["rows"]).items():
        save_png(figure, target / f"retrieval-{name}.png")
