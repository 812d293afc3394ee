"""One drifting stream, drawn from the JSON: ``python -m benchmarks retrieval --pieces stream``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from benchmarks.plots import Figure, headed, save_figure
from benchmarks.records import figures_of, folder_of, read_record
from laplace_metric.monitor import Alarm, WindowReport
from laplace_metric.plots import monitor_plot

NAME = "drift"
Row = dict[str, Any]


def stream_figure(shown: Row) -> Figure:
    """Of an example."""
    reports = [WindowReport.from_json(report) for report in shown["reports"]]
    alarms = [Alarm(**alarm) for alarm in shown["alarms"]]
    figure = monitor_plot(reports, alarms, shown["level"], change=shown["after"])
    what = f"{100 * shown['share']:g} % of the queries become {shown['change'].upper()}"
    note = (
        "One stream of FashionMNIST queries. The evidence is written down at the end of each "
        "window and at its alarm."
    )
    return headed(figure, f"{what}: when is it told?", note)


def run_stream(options: Namespace) -> None:
    """The figure alone, from the JSON."""
    shown = read_record(NAME, folder_of(options))["example"]
    save_figure(stream_figure(shown), figures_of(options) / f"{NAME}.png")
