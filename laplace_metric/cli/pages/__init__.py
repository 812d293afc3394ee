"""Reports as tables in the terminal and as web pages that ask for nothing from outside."""

from laplace_metric.cli.pages._html import Chart, Picture, Strip, render, strip, strips, templates
from laplace_metric.cli.pages._rows import Report, Section, terminal_table

__all__ = [
    "Chart",
    "Picture",
    "Report",
    "Section",
    "Strip",
    "render",
    "strip",
    "strips",
    "templates",
    "terminal_table",
]
