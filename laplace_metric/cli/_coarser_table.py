"""Coarser levels of labels from a table: a row a label, its groups from fine to coarse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laplace_metric._utils.tables import filled_cells, read_table, shown_columns
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.cli._gallery import CALIBRATE
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.search import Index

LABEL = "label"
"""Column of the labels; each other one is a level."""


def levels_of(index: Index, path: Path) -> Levels:
    """Return the levels of a table for the labels of an index.

    Parameters
    ----------
    index : Index
        Index that labels have calibrated.
    path : Path
        Table, as for ``read_levels``.

    Raises
    ------
    InputError
        For an index that no labels calibrated, and as ``read_levels``.
    """
    if index.calibration is None:
        raise InputError(f"--coarser {path}: the index is not calibrated. {CALIBRATE}.")
    try:
        labels = index.calibration.held_out_labels().classes.tolist()
    except NotFittedError as error:
        raise InputError(f"--coarser {path}: {error}") from error
    return read_levels(path, labels)


def read_levels(path: Path, labels: Sequence[Any]) -> Levels:
    """Return the levels of a table.

    Parameters
    ----------
    path : Path
        Table, .csv or .tsv, with a column ``label``; the others are levels, from fine to coarse.
    labels : sequence of whole numbers or strings
        Labels of the index, each once.

    Raises
    ------
    InputError
        For a table without such columns, an empty cell, a label with two groups, a number that is
        none, and levels as ``Levels.read``.
    """
    option = f"--coarser {path}"
    columns = read_table(path, {LABEL: ""})
    if len(columns) < 2:
        raise InputError(
            f"{option}: its one column is {shown_columns(columns)}. Add a column of groups for "
            "each level, from fine to coarse."
        )
    names: list[Any] = filled_cells(path, LABEL, columns[LABEL])
    if labels and not isinstance(labels[0], str):
        known = {str(label): label for label in labels}
        names = [known.get(name, name) for name in names]
    levels = []
    for column in [name for name in columns if name != LABEL]:
        level = dict[Any, str]()
        for name, group in zip(names, filled_cells(path, column, columns[column]), strict=True):
            if level.setdefault(name, group) != group:
                raise InputError(
                    f"{option}: label {name!r} has two groups in {column!r}, {level[name]!r} and "
                    f"{group!r}: give each label one row."
                )
        levels.append(level)
    try:
        return Levels.read(levels, labels)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
