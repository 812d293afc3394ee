"""Results as a table in the terminal, a self-contained web page, and JSON."""

from laplace_metric.report.content import Report, Section
from laplace_metric.report.files import to_json, write_atomically
from laplace_metric.report.html import render
from laplace_metric.report.terminal import terminal_table

__all__ = ["Report", "Section", "render", "terminal_table", "to_json", "write_atomically"]
