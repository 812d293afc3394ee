"""Results as a table in the terminal, a self-contained web page, and JSON."""

from laplace_metric._utils.files import to_json, write_atomically
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
    "to_json",
    "write_atomically",
]
