"""Tables: of a text file, and columns as a data frame where pandas is installed.

Names that are not text: any bytes in, one escape out.

A file name on POSIX is bytes. Python reads a byte that is not UTF-8, such as FF, as the lone
surrogate U+DCFF, which opens the same file again but has no encoding. Names keep that form inside
the package. Where they leave it, the surrogate is written as ``\udcff``: in a JSON that is the
escape of the same character, so that a reader gets the exact name back.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    import pandas


def as_pandas(columns: dict[str, np.ndarray[Any, Any]]) -> pandas.DataFrame:
    """A table of them.

    Raises
    ------
    MissingPackageError
        Without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        install = "pip install pandas"
        raise MissingPackageError("pandas", "to_pandas()", install) from error
    return pandas.DataFrame(columns)


def read_columns(path: Path) -> dict[str, list[str]]:
    """Read the cells of each column of a .csv or .tsv; of two with one name, of the first.

    Raises
    ------
    InputError
        If a row has another number of fields, or it is no text file.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(lines, [])
            for row in lines:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {lines.line_num}: {len(row)} fields where the first line "
                        f"has {len(header)}. Put texts that hold a {delimiter!r} in quotes."
                    )
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a UTF-8 table: {error}.") from error
    places = {name: header.index(name) for name in header}
    return {name: [row[place] for row in rows] for name, place in places.items()}


# Names that are not text: any bytes in, one escape out.

SURROGATE = re.compile("[\ud800-\udfff]")
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def utf8(text: str) -> bytes:
    r"""Encode a text; lone surrogates become ``\udcff``.

    Examples
    --------
    >>> utf8("caf\udcff.png")
    b'caf\\udcff.png'
    """
    return text.encode("utf-8", "backslashreplace")


def one_line(text: str) -> str:
    r"""Escape what a terminal or a figure cannot show: lone surrogates and control characters.

    Examples
    --------
    >>> print(one_line("a\nb\x1b[31m\udcff"))
    a\nb\x1b[31m\udcff
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextmanager
def utf8_path(path: Path) -> Iterator[Path]:
    """A path that native code can open: ``path``, or a link to it where its name is not UTF-8."""
    if not SURROGATE.search(str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(path.absolute())
        yield link
