"""The comparison table for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from laplace_metric.report.content import Section
from laplace_metric.report.rows import Cell, table_rows

SHORT = len("± 0.000")  # longer notes stand under their number


def terminal_table(section: Section) -> Table:
    """A `rich` table of a section; the best value of a row is bold and has a star."""
    table = Table(title=section.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("", max_width=22)
    for method in section.results:
        table.add_column(method, justify="right", no_wrap=True)
    group = None
    for row in table_rows(section.results):
        if row.group != group:
            group = row.group
            table.add_row(f"[dim]{group}[/dim]")
        table.add_row(f"  {row.name} {row.arrow}", *(_marked(cell) for cell in row.cells))
    return table


def _marked(cell: Cell) -> str:
    text = f"[bold]{cell.text}*[/bold]" if cell.best else f"{cell.text} "
    if not cell.note:
        return text
    gap = " " if len(cell.note) <= SHORT else "\n"
    return f"{text}{gap}[dim]{cell.note}[/dim]"
