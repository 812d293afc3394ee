"""Every figure, from plain values: the only room that imports matplotlib."""

from laplace_metric.plots._curves import INK, STYLES, Style, inline_svg
from laplace_metric.plots._neighbours import picture
from laplace_metric.plots._stream import monitor_plot

__all__ = ["INK", "STYLES", "Style", "inline_svg", "monitor_plot", "picture"]
