"""A table of results for a terminal of any width: names keep both ends, columns go in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.table import Table

GAP = 2
"""Characters between two columns."""
ELLIPSIS = "…"


@dataclass(frozen=True)
class ShownColumn:
    """One column.

    Parameters
    ----------
    title : str
        Text of its header.
    cells : list of str
        Cells, without control characters.
    least : int or None
        Characters that it keeps where room is short; None: all, so that numbers stay whole.
    middle : bool
        True for names of files, which lose characters in the middle; others lose their end.
    right : bool
        True for numbers, at the right of their column.
    """

    title: str
    cells: Sequence[str]
    least: int | None = None
    middle: bool = False
    right: bool = False

    @property
    def whole(self) -> int:
        """Width of the longest cell."""
        return max(map(cell_len, [self.title, *self.cells]))

    @property
    def narrowest(self) -> int:
        """Smallest width that it takes."""
        return self.whole if self.least is None else min(self.least, self.whole)


@dataclass(frozen=True)
class ShownTable:
    """Columns by name, of which those first in ``spare`` are left out where room is short.

    Parameters
    ----------
    columns : mapping of name to ShownColumn
        Columns, from left to right.
    spare : sequence of tuples of names
        Columns that can be left out, those of a tuple together, the first tuple first.
    """

    columns: Mapping[str, ShownColumn]
    spare: Sequence[tuple[str, ...]]

    def widths(self, room: int) -> dict[str, int]:
        """Return the widths of the columns that are shown in ``room`` characters.

        Room beyond the narrowest widths goes to the narrowest columns first; where even these have
        none, the widest columns are cut.
        """
        shown, spare = dict(self.columns), list(self.spare)
        while spare and self._least(shown) > room:
            for name in spare.pop(0):
                shown.pop(name, None)
        widths = {name: column.narrowest for name, column in shown.items()}
        free = room - self._least(shown)
        while free > 0:
            growing = [name for name, width in widths.items() if width < shown[name].whole]
            if not growing:
                break
            widths[min(growing, key=widths.__getitem__)] += 1
            free -= 1
        while free < 0 and max(widths.values()) > 1:
            widths[max(widths, key=widths.__getitem__)] -= 1
            free += 1
        return widths

    def is_whole(self, room: int) -> bool:
        """Return True if nothing is shortened or left out in ``room`` characters."""
        return self.widths(room) == {name: column.whole for name, column in self.columns.items()}

    @staticmethod
    def _least(columns: Mapping[str, ShownColumn]) -> int:
        return sum(column.narrowest + GAP for column in columns.values()) - GAP

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        widths = self.widths(options.max_width)
        for name, width in widths.items():
            column = self.columns[name]
            table.add_column(
                escape(column.title),
                justify="right" if column.right else "left",
                width=width,
                no_wrap=True,
            )
        for row in zip(*(self.columns[name].cells for name in widths), strict=True):
            if not any(row):  # what it had to say stands in columns that are left out
                continue
            cells = zip(row, widths.items(), strict=True)
            table.add_row(
                *(
                    escape(fitted_to_width(cell, width, middle=self.columns[name].middle))
                    for cell, (name, width) in cells
                )
            )
        yield table


def fitted_to_width(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text of at most so many characters of a terminal.

    Parameters
    ----------
    text : str
        Text of one line.
    width : int
        Most characters of a terminal; wide ones count twice.
    middle : bool
        Leave out characters in the middle, so that the end of a name is kept. Default: False.

    Examples
    --------
    >>> fitted_to_width("birds/goldfinch_0017.jpg", 16, middle=True), fitted_to_width("birds", 3)
    ('birds…h_0017.jpg', 'bi…')
    """
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 3 if middle else width - 1
    end = "" if not middle else set_cell_size(text[::-1], width - 1 - head)[::-1]
    return f"{set_cell_size(text, head)}{ELLIPSIS}{end}"
