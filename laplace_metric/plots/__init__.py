"""Every figure, from plain values: the only package that imports matplotlib."""

from matplotlib.figure import Figure

from laplace_metric.plots._answering import answering_plot
from laplace_metric.plots._monitor import monitor_plot
from laplace_metric.plots._neighbours import neighbours_plot
from laplace_metric.plots._outcome import outcome_plot
from laplace_metric.plots._reliability import reliability_plot
from laplace_metric.plots._threshold import threshold_plot
from laplace_metric.plots._uncertainty import uncertainty_plot

__all__ = [
    "Figure",
    "answering_plot",
    "monitor_plot",
    "neighbours_plot",
    "outcome_plot",
    "reliability_plot",
    "threshold_plot",
    "uncertainty_plot",
]
