"""Which items are a match of a query: those of its label, or those that are named.

Labels say it where a match is a class; relevance judgements where it is none: an image has several
texts, and a text several images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError
from laplace_metric.search._items import Column, Encoded, Items, joined_labels
from laplace_metric.search.match import LabelledHits, SearchHits

Matches = Sequence[Any]
"""Ids of all items that are a match, a list a query: whole numbers or strings, [] for none."""
Judge = Callable[[SearchHits], LabelledHits]


def judge_of(
    items: Items, labels: Any, matches: Matches | None
) -> Callable[[Encoded, list[Any]], Judge]:
    """What tells matches among hits, once queries and the labels of their batches are read.

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
    column = Column.of("labels", labels, len(encoded))
    assert items.labels is not None
    items.labels.check_like("labels", column)
    return column


def _by_label(items: Items, labels: Column) -> Judge:
    def judge(hits: SearchHits) -> LabelledHits:
        assert items.labels is not None
        assert items.classes is not None
        device = hits.positions.device
        of_items = items.labels.values[hits.positions.clamp(min=0).cpu().numpy()]
        match = torch.from_numpy(np.asarray(labels.values[:, None] == of_items, dtype=bool))
        codes = torch.from_numpy(items.classes.codes_of(labels.values)).to(device)
        match = match.to(device) & (hits.positions >= 0)
        return LabelledHits(hits, match, codes >= 0, codes, items.classes)

    return judge


def rows_of_matches(items: Items, matches: Matches) -> list[Tensor]:
    """Rows [m] of the items that each list names.

    Raises
    ------
    InputError
        For what is no list of lists, and ids that are not in the index.
    """
    if isinstance(matches, (str, bytes)) or not isinstance(matches, Sequence):
        raise InputError(
            f"matches is a {type(matches).__name__}: pass a list with a list of ids for each query."
        )
    columns = [_ids(f"matches[{query}]", named) for query, named in enumerate(matches)]
    kinds = {column.is_text for column in columns if len(column)}
    if len(kinds) > 1:
        raise InputError("matches hold numbers and strings: pass ids as those of the index.")
    sizes = [len(column) for column in columns]
    if not kinds:
        return [torch.zeros(0, dtype=torch.long) for _ in sizes]
    ids = np.concatenate([column.values for column in columns if len(column)])
    return list(items.rows_of(ids, "matches").split(sizes))


def _ids(name: str, named: Any) -> Column:
    if isinstance(named, (str, bytes)) or not hasattr(named, "__len__"):
        raise InputError(f"{name} is {named!r:.40}: pass a list of ids, an empty one for none.")
    return Column.of(name, named if isinstance(named, (Tensor, np.ndarray)) else list(named))


def _by_name(items: Items, rows: list[Tensor], n_queries: int) -> Judge:
    if len(rows) != n_queries:
        raise InputError(
            f"matches has {len(rows)} lists for {n_queries} queries: pass one for each, an empty "
            "one where no item is a match."
        )
    sizes = torch.tensor([len(own) for own in rows])
    query = torch.arange(n_queries).repeat_interleave(sizes)
    keys = (query * len(items) + torch.cat(rows)).sort().values

    def judge(hits: SearchHits) -> LabelledHits:
        positions = hits.positions.cpu()
        asked = torch.arange(n_queries)[:, None] * len(items) + positions
        place = torch.searchsorted(keys, asked.contiguous()).clamp_max(max(0, len(keys) - 1))
        match = keys[place] == asked if len(keys) else torch.zeros_like(asked, dtype=torch.bool)
        match, device = match & (positions >= 0), hits.positions.device
        return LabelledHits(hits, match.to(device), (sizes > 0).to(device))

    return judge
