"""Output of a command: what it prints, its files, and templates of its web pages."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from laplace_metric._utils.names import one_line, utf8
from laplace_metric._utils.tables import pyarrow
from laplace_metric.cli import ours
from laplace_metric.cli._options import in_options
from laplace_metric.errors import InputError
from laplace_metric.io import exists, json_text, require_writable, write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

STDOUT = Path("-")
MOST_MISSING = 100
"""Folders that are made at once, one inside the other: Python makes them by recursion."""


@dataclass(frozen=True)
class Reporter:
    """Results to stdout, notes to stderr, numbers to where ``json`` says.

    Parameters
    ----------
    quiet : bool
        Nothing but errors, and JSON if it was asked for.
    json : Path or None
        A file, or ``-`` for stdout, which then holds nothing else.
    at_end : list of callables
        Each gives a note, or None, for when the numbers are told, which is last.
    """

    quiet: bool = False
    json: Path | None = None
    at_end: list[Callable[[], str | None]] = field(default_factory=list)

    @property
    def progress(self) -> bool:
        """True if bars are shown."""
        return not self.quiet

    def note(self, text: str) -> None:
        """A guess or a warning."""
        if not self.quiet:
            print(f"note: {one_line(text)}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A result."""
        if not self.quiet and self.json != STDOUT:
            print(text, file=ours())

    def show(self, table: Table) -> None:
        """A result as a table."""
        if not self.quiet and self.json != STDOUT:
            Console(file=ours()).print(table)

    def numbers(self, content: dict[str, Any]) -> None:
        """The result for machines."""
        for text in filter(None, (of() for of in self.at_end)):
            self.note(text)
        if self.json == STDOUT:
            unicode = (ours().encoding or "utf-8").lower().startswith("utf")
            ours().write(json_text(content, ascii_only=not unicode))
        elif self.json is not None:
            write_atomically(self.json, json_text(content))

    @contextmanager
    def warnings(self, refused: type[Warning] | None = None) -> Iterator[None]:
        """Warnings become notes, each distinct one at the end; those ``refused`` are raised."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if refused is not None:
                warnings.simplefilter("error", refused)
            try:
                yield
            finally:  # they may say why an error came
                for text in dict.fromkeys(in_options(str(each.message)) for each in caught):
                    self.note(text)


def reporter_of(options: Any, *files: Path | None, holds: str = "") -> Reporter:
    """The reporter of a command, whose ``files`` and JSON are checked before the work.

    ``holds`` names the file that makes --output a folder of this command.

    Raises
    ------
    InputError
        If a file exists and --overwrite was not given, or it cannot be written.
    """
    paths = [path for path in (*files, options.json) if path not in (None, STDOUT)]
    require_outputs(paths)
    named = {path: path for path in paths}
    if holds:
        require_folder(options.output)
        named[options.output / holds] = options.output
    for path, name in named.items():
        if exists(path) and not options.overwrite:
            raise InputError(f"{name} exists: give --overwrite, or another --output.")
    return Reporter(options.quiet, options.json)


def require_outputs(paths: Sequence[Path]) -> None:
    """Check that different files are named, and that each can be written.

    Raises
    ------
    InputError
        If not.
    """
    repeated = [path for path in paths if paths.count(path) > 1]
    if repeated:
        raise InputError(f"two results would go to {repeated[0]}. Give different names.")
    for path in paths:
        require_writable(path)


def require_folder(path: Path) -> None:
    """Check that ``path`` is a folder that can be written to, or that one can be made.

    Raises
    ------
    InputError
        If not.
    """
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not parent.is_dir():
        raise InputError(f"--output {path}: {parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"--output {path}: the folder {parent} may not be written to.")
    if (missing := len(path.absolute().parts) - len(parent.absolute().parts)) > MOST_MISSING:
        raise InputError(
            f"--output {path!s:.40}...: {missing:,} folders of this path do not exist. Give a "
            "shorter one, or make them first."
        )


def discard(folder: Path) -> None:
    """Remove a working folder, if it exists; killed meanwhile, the next call removes the rest.

    It loses its name first: no later run takes a part of it for the whole.
    """
    gone = folder.with_name(f"{folder.name}.gone")
    _remove(gone)
    with suppress(FileNotFoundError):
        os.replace(folder, gone)
    _remove(gone)


def _remove(path: Path) -> None:
    """Remove a folder and what is in it; of a link, itself only."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


Columns = Mapping[str, list[Any]]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """One mapping a row.

    Examples
    --------
    >>> rows_of({"a": [1, 2], "b": ["x", "y"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write_table(path: Path, columns: Columns) -> None:
    """Write columns as .csv, .json or .parquet."""
    write_atomically(path, TABLE_WRITERS[path.suffix](columns))


def csv_text(columns: Columns) -> str:
    """A CSV, in which no cell is a formula."""
    lines = []
    for row in (columns, *zip(*columns.values(), strict=True)):
        text = io.StringIO(newline="")
        csv.writer(text).writerow(map(_defused, row))  # quotes \r and \n, as its line ends in them
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula in a spreadsheet, also in its full-width form, or hides one."""


def _defused(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: with an apostrophe, unless it is a number.

    Examples
    --------
    >>> _defused("=1+1"), _defused("-3.5"), _defused("cat")
    ("'=1+1", '-3.5', 'cat')
    """
    if not isinstance(value, str) or not value.lstrip(" ").startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value if value == value.strip() else f"'{value}"


def parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    """A Parquet file of columns, lists or arrays of pyarrow; texts in it are UTF-8."""
    file = io.BytesIO()
    texts = {
        name: [utf8(value).decode() if isinstance(value, str) else value for value in column]
        for name, column in columns.items()
        if isinstance(column, list)
    }
    table = pyarrow("lib").Table.from_pydict({**columns, **texts})
    pyarrow("parquet").write_table(table, file)
    return file.getvalue()


TABLE_WRITERS: dict[str, Callable[[Columns], str | bytes]] = {
    ".csv": csv_text,
    ".json": lambda columns: json_text(rows_of(columns)),
    ".parquet": parquet_bytes,
}


def templates(*folders: Path) -> Environment:
    """Return the templates of these folders, with the styles and macros that pages share."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow, and for pages alone

    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "pages"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
