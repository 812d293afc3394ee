"""Sets of tags, one for each item: lists of names or numbers, or a matrix of zeros and ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from laplace_metric._utils.validation import as_array, is_tensor
from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column


@dataclass(frozen=True)
class TagSets:
    """Tags of N items.

    Parameters
    ----------
    names : Column [L]
        Tags that occur, sorted; of a matrix the numbers of its columns.
    has : sparse [N, L]
        Matrix with 1 where an item has a tag.
    count : [N]
        Tags of each item, those that are not among ``names``, too.
    """

    names: Column
    has: csr_array
    count: npt.NDArray[np.int64]

    @property
    def of_all(self) -> list[Any]:
        """Tags that every item has."""
        carriers = np.asarray(self.has.sum(0)).ravel()
        return list(self.names.values[carriers == len(self.count)].tolist())

    @classmethod
    def of(
        cls, name: str, tags: Any, n: int, known: Column | None = None, columns: int | None = None
    ) -> TagSets:
        """Read sets of tags.

        Parameters
        ----------
        name : str
            Name of the argument, for errors.
        tags : N collections of whole numbers or strings, or [N, L] zeros and ones
            Tags of each item, as the caller gave them. An item may have none.
        n : int
            Number of items.
        known : Column or None
            Names that count; None: all that occur.
        columns : int or None
            Columns that a matrix must have, as that of the items; None: any number.

        Raises
        ------
        InputError
            For other shapes and values, a text in place of a collection, names of both types, and
            if no item has a tag.

        Examples
        --------
        >>> tags = TagSets.of("tags", [["red", "round"], [], ["red"]], 3)
        >>> tags.names.values.tolist(), tags.has.toarray().tolist(), tags.count.tolist()
        (['red', 'round'], [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]], [2, 0, 1])
        """
        rows = _rows(name, tags, columns)
        if len(rows) != n:
            raise InputError(f"{name} has {len(rows)} entries for {n} items: pass a set for each.")
        flat = [tag for row in rows for tag in row]
        if not flat and known is None:
            raise InputError(f"{name}: no item has a tag. Pass [['red', 'round'], ['red'], ...].")
        count = np.array([len(row) for row in rows], np.int64)
        if not flat:
            assert known is not None
            return cls(known, csr_array((n, len(known))), count)
        _check_kinds(name, rows)
        given = Column.of(name, flat)
        names = Column(np.unique(given.values)) if known is None else known
        if names.is_text != given.is_text:
            kinds = ["texts" if one.is_text else "numbers" for one in (names, given)]
            raise InputError(f"tags of {name} are {kinds[1]}, and those of the items {kinds[0]}.")
        codes, item = names.codes_of(given.values), np.repeat(np.arange(n), count)
        use = codes >= 0
        has = csr_array((np.ones(int(use.sum())), (item[use], codes[use])), shape=(n, len(names)))
        return cls(names, has, count)

    def take(self, rows: npt.NDArray[np.int_]) -> TagSets:
        """Return the tags of some items."""
        return TagSets(self.names, self.has[rows], self.count[rows])

    def joined(self, group: npt.NDArray[np.int64]) -> TagSets:
        """Return the tags of each group of items: those that any of them has.

        Parameters
        ----------
        group : [N]
            Number of the group of each item, from 0.
        """
        n = int(group.max()) + 1
        member = csr_array((np.ones(len(group)), (group, np.arange(len(group)))), (n, len(group)))
        has = (member @ self.has > 0).astype(np.float64)
        return TagSets(self.names, csr_array(has), np.asarray(has.sum(1)).ravel().astype(np.int64))


def rows_by_tag(tags: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return one row for each tag of each item, and the number of the tag: a fit of sets of tags.

    A pair of such rows is positive if they have the tag in common, so that the pair of items i and
    j counts ``y_ij`` times as positive, with ``y_ij`` the number of tags that they share, and
    ``|L_i| |L_j| - y_ij`` times as negative. Sums over pairs stay sums over tags, O(N L) in place
    of O(N^2). A pair of an item with itself changes nothing. Items without a tag have no row.

    Parameters
    ----------
    tags : N collections of whole numbers or strings, or [N, L] zeros and ones
        Tags of each item.

    Returns
    -------
    rows, labels : [R], [R]
        Row of the item, and number of the tag, for ``LaplaceEmbedder(model).fit(x[rows], labels)``.
        Pass ``n_effective=N``: a posterior of R rows would count an item once for each tag.

    Raises
    ------
    InputError
        For what is no set of tags.

    Examples
    --------
    >>> rows, labels = rows_by_tag([["red", "round"], ["red"], []])
    >>> rows.tolist(), labels.tolist()
    ([0, 0, 1], [0, 1, 0])
    """
    tags = tags if hasattr(tags, "__len__") else list(tags)
    has = TagSets.of("tags", tags, len(tags)).has
    return (
        np.repeat(np.arange(has.shape[0]), np.diff(has.indptr)),
        has.indices.astype(np.int64),
    )


def _rows(name: str, tags: Any, columns: int | None = None) -> list[list[Any]]:
    """Return the distinct tags of each item, in the order in which they were given."""
    if isinstance(tags, (str, bytes, Mapping)) or not isinstance(tags, Iterable):
        raise InputError(f"{name} is a {type(tags).__name__}: pass a collection for each item.")
    if hasattr(tags, "columns"):
        raise InputError(f"{name} is a data frame: pass {name}.to_numpy(), zeros and ones.")
    if hasattr(tags, "tocsr"):
        raise InputError(f"{name} is a sparse matrix: pass {name}.toarray(), or lists of tags.")
    if is_tensor(tags) or isinstance(tags, np.ndarray):
        if tags.ndim == 2:
            return _of_matrix(name, tags, columns)
        if tags.ndim != 1 or is_tensor(tags) or tags.dtype != object:
            shape = tuple(tags.shape)
            raise InputError(f"{name} has shape {shape}: pass [N, L] zeros and ones, or lists.")
    rows = [_row(f"{name}[{place}]", row) for place, row in enumerate(tags)]
    lengths = {len(row) for row in rows}
    flags = all(type(tag) in (int, bool) and tag in (0, 1) for row in rows for tag in row)
    if flags and len(lengths) == 1 and any(len(set(row)) < len(row) for row in rows):
        raise InputError(
            f"{name} are lists of {lengths.pop()} zeros and ones, which would be the tags 0 and 1: "
            f"pass numpy.array({name}), a matrix."
        )
    return [list(dict.fromkeys(row)) for row in rows]


def _of_matrix(name: str, tags: Any, columns: int | None) -> list[list[Any]]:
    if is_tensor(tags):
        tags = tags.detach().double() if tags.is_floating_point() else tags.detach()
    matrix = as_array(name, tags)
    if not np.isin(matrix, (0, 1)).all():
        raise InputError(f"{name} holds other numbers than 0 and 1: pass [N, L] of these.")
    if columns is not None and matrix.shape[1] != columns:
        raise InputError(
            f"{name} has {matrix.shape[1]} columns, and the tags of the items have {columns}: pass "
            "the same tags in the same order, or lists of tags."
        )
    return [row.nonzero()[0].tolist() for row in matrix]


def _row(name: str, row: Any) -> list[Any]:
    """Return the tags of one item, plain numbers and texts."""
    if row is None:
        raise InputError(f"{name} is None: pass [] for an item without tags.")
    if isinstance(row, (str, bytes, Mapping)) or not isinstance(row, Iterable):
        raise InputError(
            f"{name} is {row!r:.40}, no collection: pass [{row!r:.20}], a list of the tags of an "
            "item."
        )
    row = row.tolist() if is_tensor(row) or isinstance(row, np.ndarray) else list(row)
    row = row if isinstance(row, list) else [row]
    for tag in row:
        if not isinstance(tag, (str, int, np.integer)) or isinstance(tag, (bool, np.bool_)):
            raise InputError(f"{name} holds {tag!r:.40}: pass whole numbers or strings.")
        if isinstance(tag, str) and not tag.strip():
            raise InputError(f"{name} holds an empty text, which is no tag: leave it out.")
    return [tag if isinstance(tag, str) else int(tag) for tag in row]


def _check_kinds(name: str, rows: list[list[Any]]) -> None:
    """Refuse numbers beside texts, by the first item that has the other kind."""
    kinds = [{isinstance(tag, str) for tag in row} for row in rows]
    first = next(iter(next(kind for kind in kinds if kind)))
    for place, kind in enumerate(kinds):
        if kind - {first}:
            raise InputError(
                f"{name}[{place}] has {'numbers' if first else 'texts'} and others have "
                f"{'texts' if first else 'numbers'}: pass whole numbers or strings throughout."
            )
