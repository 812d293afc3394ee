"""Decide which items are a match of a query: those of its label, or those that are named.

Labels decide where a match is a class; relevance judgements where it is not: an image has several
texts, and a text several images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._columns import Column, Values
from laplace_metric.inputs._id_lists import read_id_lists
from laplace_metric.inputs._labels import joined_labels
from laplace_metric.inputs._not_classes import IS_NO_CLASS
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._items import Items
from laplace_metric.search.classes._near_names import warn_of_near_names
from laplace_metric.search.engines._engine import Engine
from laplace_metric.search.rank._neighbours import RowSearch, without_some

Matches = Sequence[Any]
"""Ids of all items that are a match, a list a query: whole numbers or strings, [] for none."""


@dataclass(frozen=True)
class Relevance:
    """Matches of each of Q queries among the items.

    Parameters
    ----------
    is_match : function
        Function of rows [q, k] of the index and of queries [q], which returns True [q, k] for each
        row that is a match of its query.
    n_matches : Tensor [Q]
        Number of items that are a match of each query.
    codes, classes
        Place of each query's label among the labels of the index, and these labels, as in
        ``LabelledHits``. None, the default: matches are named, not labelled.
    """

    is_match: Callable[[Int[Tensor, "q k"], Int[Tensor, " q"]], Bool[Tensor, "q k"]]
    n_matches: Int[Tensor, " Q"]
    codes: Int[Tensor, " Q"] | None = None
    classes: Values | None = None

    @property
    def known(self) -> Bool[Tensor, " Q"]:
        """True where any item is a match of a query [Q]."""
        return self.n_matches > 0

    def __call__(self, hits: SearchHits) -> LabelledHits:
        """Label the hits of all Q queries."""
        return self.of_some(hits, torch.arange(len(hits.positions)))

    def of_some(self, hits: SearchHits, queries: Int[Tensor, " q"]) -> LabelledHits:
        """Label the hits of these queries [q]."""
        rows = torch.from_numpy(hits.positions)
        match, known = self.is_match(rows, queries) & (rows >= 0), self.known[queries]
        codes = None if self.codes is None else self.codes[queries].numpy()
        return LabelledHits(hits, match.numpy(), known.numpy(), codes, self.classes)

    def open_set(self, hits: SearchHits) -> LabelledHits:
        """Label hits of simulated open-set queries, none of which is a match."""
        none = np.zeros(hits.positions.shape, dtype=bool)
        codes = None if self.codes is None else np.full(len(none), -1)
        hidden = np.ones(len(none), dtype=bool)
        return LabelledHits(hits, none, none[:, 0], codes, self.classes, simulated=hidden)

    def others(self, engine: Engine, queries: Int[Tensor, " q"]) -> RowSearch:
        """Return an engine that finds the items that do not match ``queries`` [q]."""

        def passed_over(rows: Tensor, part: slice) -> Tensor:
            return self.is_match(rows.cpu(), queries[part]).to(rows.device)

        most = int(self.n_matches[queries].max()) if len(queries) else 0
        return without_some(engine, passed_over, most)


def relevance_of(
    items: Items, labels: Any, matches: Matches | None
) -> Callable[[Encoded, list[Any]], Relevance]:
    """Return the function that finds matches among hits, given queries and their labels.

    Raises
    ------
    LabelError
        For labels and matches together, or an index without labels and no matches; and, when they
        are read, for queries without labels.
    InputError
        For matches that name no item or are no lists; and for labels or lists of another number
        than there are queries.
    """
    if matches is None:
        if items.labels is None:
            raise LabelError(
                "the index has no labels: pass labels= to embedder.index, or matches= here, which "
                "names the items that are a match of each query."
            )
        return lambda encoded, found: _by_label(items, _labels(items, encoded, found, labels))
    if labels is not None:
        raise LabelError("labels= and matches= are two answers to one question: pass one of them.")
    rows = rows_of_matches(items, matches)
    return lambda encoded, _: _by_name(items, rows, len(encoded))


def _labels(items: Items, encoded: Encoded, batch_labels: list[Any], labels: Any) -> Column:
    labels = joined_labels(batch_labels) if labels is None else labels
    if labels is None:
        raise LabelError("queries have no labels: pass labels=, or a loader that yields them.")
    assert items.labels is not None
    column = Column.of_labels(labels, len(encoded), items.classes, IS_NO_CLASS)
    items.labels.check_like("labels", column)
    therefore = "They count as queries without a match: write labels as the items do."
    warn_of_near_names(column, items.classes, therefore)
    return column


def _by_label(items: Items, labels: Column) -> Relevance:
    assert items.classes is not None
    assert items.label_codes is not None
    of_items, classes = items.label_codes.cpu(), items.classes
    codes = torch.from_numpy(classes.codes_of(labels.values))
    count = torch.bincount(of_items, minlength=len(classes))[codes.clamp(min=0)]

    def is_match(rows: Tensor, queries: Tensor) -> Tensor:
        return of_items[rows.clamp(min=0)] == codes[queries, None]

    return Relevance(is_match, count.masked_fill(codes < 0, 0), codes, classes.values)


def rows_of_matches(items: Items, matches: Matches) -> list[Tensor]:
    """Return the rows [m] of the items that each list names.

    Raises
    ------
    InputError
        For what is no list of lists, and ids that are not in the index.
    """
    columns = read_id_lists("matches", matches)
    sizes = [len(column) for column in columns]
    if not sum(sizes):
        return [torch.zeros(0, dtype=torch.long) for _ in sizes]
    ids = np.concatenate([column.values for column in columns if len(column)])
    return list(items.rows_of(ids, "matches").split(sizes))


def _by_name(items: Items, rows: list[Tensor], n_queries: int) -> Relevance:
    if len(rows) != n_queries:
        raise InputError(
            f"matches has {len(rows)} lists for {n_queries} queries: pass one for each, an empty "
            "one where no item is a match."
        )
    sizes = torch.tensor([len(own) for own in rows])
    query = torch.arange(n_queries).repeat_interleave(sizes)
    keys = (query * len(items) + torch.cat(rows)).sort().values

    def is_match(rows: Tensor, queries: Tensor) -> Tensor:
        asked = queries[:, None] * len(items) + rows
        place = torch.searchsorted(keys, asked.contiguous()).clamp_max(max(0, len(keys) - 1))
        return keys[place] == asked if len(keys) else torch.zeros_like(asked, dtype=torch.bool)

    return Relevance(is_match, sizes)
