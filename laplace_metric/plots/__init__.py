"""Every figure, from plain values: the only room that imports matplotlib."""

from matplotlib.figure import Figure

from laplace_metric.plots._curves import (
    answering_plot,
    monitor_plot,
    reliability_plot,
    threshold_plot,
    uncertainty_plot,
)
from laplace_metric.plots._neighbours import neighbours_plot

__all__ = [
    "Figure",
    "answering_plot",
    "monitor_plot",
    "neighbours_plot",
    "reliability_plot",
    "threshold_plot",
    "uncertainty_plot",
]
