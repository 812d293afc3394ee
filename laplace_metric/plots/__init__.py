"""Every figure, from plain values: the only room that imports matplotlib."""

from matplotlib.figure import Figure

from laplace_metric.plots._answering import answering_plot
from laplace_metric.plots._curves import (
    reliability_plot,
    roc_plot,
    sparsification_plot,
    uncertainty_plot,
)
from laplace_metric.plots._intervals import wilson_interval
from laplace_metric.plots._neighbours import ImagesOrTexts, RankedNeighbours, neighbours_plot
from laplace_metric.plots._stream import WindowSummary, monitor_plot
from laplace_metric.plots._style import FONT, INK, STYLES, Style, inline_svg, svg_of
from laplace_metric.plots._threshold import threshold_plot

__all__ = [
    "FONT",
    "INK",
    "STYLES",
    "Figure",
    "ImagesOrTexts",
    "RankedNeighbours",
    "Style",
    "WindowSummary",
    "answering_plot",
    "inline_svg",
    "monitor_plot",
    "neighbours_plot",
    "reliability_plot",
    "roc_plot",
    "sparsification_plot",
    "svg_of",
    "threshold_plot",
    "uncertainty_plot",
    "wilson_interval",
]
