"""Every figure of the benchmarks, from plain values: the only room here that imports matplotlib."""

from matplotlib.figure import Figure

from benchmarks.plots._cost import CostPoint, cost_plot, spread
from benchmarks.plots._curves import (
    Axis,
    Series,
    histogram_plot,
    line_plot,
    lines_plot,
    points_plot,
)
from benchmarks.plots._draws import DrawnInput, draws_plot
from benchmarks.plots._files import save_figure, save_png, svg_file, svg_plot
from benchmarks.plots._forty import forty_plot
from benchmarks.plots._image_text import ImageStrip, strips_plot
from benchmarks.plots._methods import DotPanel, dot_plot, forest_plot, heat_plot
from benchmarks.plots._retrieval import evidence_plot
from benchmarks.plots._scale import scale_plot
from benchmarks.plots._style import diverging, headed, letters_on
from benchmarks.plots._sweeps import Line, TradeOff, trade_off_plot
from benchmarks.plots._tiles import Neighbours, Tiles, neighbours_plot, tiles_plot

__all__ = [
    "Axis",
    "CostPoint",
    "DotPanel",
    "DrawnInput",
    "Figure",
    "ImageStrip",
    "Line",
    "Neighbours",
    "Series",
    "Tiles",
    "TradeOff",
    "cost_plot",
    "diverging",
    "dot_plot",
    "draws_plot",
    "evidence_plot",
    "forest_plot",
    "forty_plot",
    "headed",
    "heat_plot",
    "histogram_plot",
    "letters_on",
    "line_plot",
    "lines_plot",
    "neighbours_plot",
    "points_plot",
    "save_figure",
    "save_png",
    "scale_plot",
    "spread",
    "strips_plot",
    "svg_file",
    "svg_plot",
    "tiles_plot",
    "trade_off_plot",
]  # fmt: skip
