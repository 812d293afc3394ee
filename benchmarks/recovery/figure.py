"""Whether more draws mend the certainty: ``python -m benchmarks recovery --pieces figure``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.plots import Figure, draws_plot, headed, save_figure
from benchmarks.records import FIGURES, read_record
from benchmarks.recovery.runs import DRAWS
from laplace_metric.errors import InputError

PRINTED = 6.15
"""RMSE of kappa that Kirchhof et al. (2023a) print for MCInfoNCE with 512 draws."""


def recovered_certainty(rows: Sequence[dict[str, Any]]) -> Figure:
    """The error of the certainty against draws, of the numbers of draws that were run.

    Raises
    ------
    InputError
        If none was.
    """
    runs = {
        n: [row["certainty"]["rmse"] for row in rows if row["loss"] == f"mcinfonce, {n} draws"]
        for n in DRAWS
    }
    errors = {n: values for n, values in runs.items() if values}
    if not errors:
        raise InputError(
            "recovery.json has no run of MCInfoNCE by draws: python -m benchmarks recovery --runs "
            "draws."
        )
    counts = sorted({len(values) for values in errors.values()})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    title = "Do more draws while it learns mend the certainty?"
    return headed(draws_plot(errors, PRINTED), title, f"MCInfoNCE, {seeds} seeds each.")


def run_recovery(options: Namespace) -> None:
    """The error of the certainty against draws."""
    if options.size == "smoke":
        return
    figure = recovered_certainty(read_record("recovery")["rows"])
    save_figure(figure, FIGURES / "recovery-draws.png")
