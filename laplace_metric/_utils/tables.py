"""Tables: of a text file, and columns as a data frame where pandas is installed."""

from __future__ import annotations

import csv
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
