"""The record as a figure: ``python -m benchmarks scale --pieces figure``."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.plots import FIGURES, save_png, scale_plot
from benchmarks.records import RESULTS, folder_of, read_record
from benchmarks.scale.common import NAME


def run(options: Namespace) -> None:
    """Draw what the record has; beside it, unless it is that of the results."""
    folder = folder_of(options)
    path = (FIGURES if folder == RESULTS else folder) / f"{NAME}.png"
    save_png(scale_plot(read_record(NAME, folder)), path)
    print(path.name)
