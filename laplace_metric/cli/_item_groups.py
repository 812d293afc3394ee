"""Groups of the items of a table, such as the video of each frame."""

from __future__ import annotations

from pathlib import Path

from laplace_metric._utils.tables import TABLES, filled_cells, read_table
from laplace_metric.cli._source import Source
from laplace_metric.errors import InputError

Groups = dict[str, str]
"""Group of each item, by its id."""


def require_groups(path: Path, column: str) -> None:
    """Check that data can have a column of groups, without reading them.

    Parameters
    ----------
    path : Path
        Data, which exist.
    column : str
        Name of the column.

    Raises
    ------
    InputError
        If the data are no table.
    """
    if path.is_dir() or path.suffix.lower() not in TABLES:
        raise InputError(
            f"--group-column {column}: {path} is no table. List the items in a .csv with the "
            f"columns path, label and {column}."
        )


def groups_of_items(path: Path, source: Source, column: str) -> Groups:
    """Return the group of each item of a table.

    Parameters
    ----------
    path : Path
        Table of the items, .csv or .tsv.
    source : Source
        All items of the table, in its order.
    column : str
        Name of the column of groups.

    Raises
    ------
    InputError
        If the data are no table, it has no such column, a cell has no value, or rows were left out.
    """
    require_groups(path, column)
    cells = filled_cells(path, column, read_table(path, {column: "--group-column"})[column])
    if len(cells) != len(source):
        raise InputError(
            f"--group-column {column}: {len(cells) - len(source)} of {len(cells)} items of {path} "
            "were left out, so groups have no place. Remove their rows from the table."
        )
    return dict(zip(source.ids, cells, strict=True))


def views_of_queries(path: Path, source: Source, column: str | None) -> list[str] | None:
    """Return the group of each query of a table, whose rows are views of one thing.

    Parameters
    ----------
    path : Path
        Table of the queries, .csv or .tsv.
    source : Source
        Queries that are read, all of the table or some.
    column : str or None
        Name of the column of groups; None: each row is a query.

    Raises
    ------
    InputError
        As ``groups_of_items``.
    """
    if column is None:
        return None
    groups = groups_of_items(path, source, column)
    return [groups[name] for name in source.ids]
