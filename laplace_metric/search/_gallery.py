"""Items that can be searched, added and removed; ``Index`` adds what a match is."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.models.features import Fingerprints
from laplace_metric.search._encoding import Encoder, FittedEmbedder
from laplace_metric.search._fitted import warn_if_fitted
from laplace_metric.search._items import Encoded, Items
from laplace_metric.search._neighbours import check_ranking, nearest, vectors_of
from laplace_metric.search._storage import IndexState
from laplace_metric.search.engines import Engine, EngineKind, kind_of
from laplace_metric.search.engines import _build as engines
from laplace_metric.search.match import LabelledHits, LabelVotes, SearchHits

if TYPE_CHECKING:
    from typing_extensions import Self


class Gallery:
    """Items, the engine that finds the nearest of them, and the encoder that both come from.

    Any number of threads may search, add and remove at once. All that changes is one value that is
    never changed itself, only replaced: a search sees the items as they were when it was called.

    Parameters
    ----------
    encoder : Encoder
    state : IndexState
    """

    def __init__(self, encoder: Encoder, state: IndexState) -> None:
        self.encoder, self._state = encoder, state
        self._changing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes, _changing=threading.Lock())

    @classmethod
    def build(
        cls,
        embedder: FittedEmbedder,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str = "mean",
        progress: bool = True,
    ) -> Self:
        """See ``LaplaceEmbedder.index``."""
        kind, rank_by = kind_of(engine), check_ranking(rank_by)
        encoder = Encoder.of(embedder)
        encoded, batch_labels = encoder.all("gallery", gallery, progress=progress)
        items = Items.of(encoded, batch_labels, labels, ids)
        vectors = vectors_of(items.encoded, rank_by, spherical=encoder.spherical)
        next_id = 0 if items.ids.is_text else int(items.ids.values.max()) + 1
        state = IndexState(items, kind, rank_by, engines.build(vectors, kind), 0, next_id, None)
        return cls(encoder, state)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def items(self) -> Items:
        """What is known of each item."""
        return self._state.items

    @property
    def engine(self) -> Engine:
        """What finds the nearest of them."""
        return self._state.engine

    @property
    def kind(self) -> EngineKind:
        """What names that engine."""
        return self._state.kind

    @property
    def rank_by(self) -> str:
        """What "nearest" means: "mean", "expected" or "shared"."""
        return self._state.rank_by

    @property
    def changes(self) -> int:
        """Items added and removed since the calibration, or so far."""
        return self._state.changes

    @property
    def next_id(self) -> int:
        """Number of the next item without an id; never given twice."""
        return self._state.next_id

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        """Of all items [N], in the order in which they were added."""
        return self.items.ids.values

    @property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Of all items [N], if they have any."""
        return None if self.items.labels is None else self.items.labels.values

    def add(
        self, gallery: Any, labels: Any = None, ids: Any = None, *, progress: bool = False
    ) -> None:
        """Add items behind the others; O(N) a call, so add many at once.

        Raises
        ------
        InputError, LabelError
            For ids that are there already, labels of another kind; nothing is added then.
        """
        encoded, batch_labels = self.encoder.all("gallery", gallery, progress=progress)
        with self._changing:
            new, next_id = Items.of(encoded, batch_labels, labels, ids, self.next_id), self.next_id
            if not new.ids.is_text:
                next_id = max(next_id, int(new.ids.values.max()) + 1)
            self._replace(self.items.joined(new), None, len(new), next_id)

    def remove(self, ids: Any) -> None:
        """Remove items by their ids; O(N) a call.

        Raises
        ------
        InputError
            For ids that are not there, or if nothing would be left; nothing is removed then.
        """
        with self._changing:
            stays = torch.ones(len(self), dtype=torch.bool)
            stays[self.items.rows_of(ids)] = False
            if not bool(stays.any()):
                raise InputError("ids name every item: an index cannot be empty.")
            rows = stays.nonzero().flatten()
            self._replace(self.items.take(rows), rows, len(stays) - len(rows), self.next_id)

    def labelled_hits(
        self, queries: Any, labels: Any = None, k: int = 10, *, progress: bool = False
    ) -> LabelledHits:
        """The k nearest items of labelled queries, and which of them are a match.

        Raises
        ------
        LabelError
            For an index or queries without labels.
        InputError
            For labels of another type than those of the index.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior.
        """
        self, k = self._now(), check_count("k", k)
        if self.items.labels is None:
            raise LabelError("the index has no labels: pass labels= to embedder.index.")
        known_rows, rows = self.encoder.fitted_rows, list[Fingerprints]()
        encoded, batch_labels = self.encoder.all("queries", queries, progress=progress, rows=rows)
        warn_if_fitted(known_rows, np.concatenate(rows))
        column = Items.of(encoded, batch_labels, labels, None).labels
        if column is None:
            raise LabelError("queries have no labels: pass labels=, or a loader that yields them.")
        self.items.labels.check_like("labels", column)
        hits = self._nearest(encoded, min(k, len(self)))
        item_labels = self.items.labels.values[hits.positions.clamp(min=0).cpu().numpy()]
        match = torch.from_numpy(np.asarray(column.values[:, None] == item_labels, dtype=bool))
        match = match.to(hits.positions.device) & (hits.positions >= 0)
        assert self.items.classes is not None
        codes = torch.from_numpy(self.items.classes.codes_of(column.values))
        return LabelledHits(hits, match, codes.to(match.device), self.items.classes)

    def _check_k(self, name: str, k: int) -> int:
        k = check_count(name, k)
        if k > len(self):
            raise InputError(f"{name}={k}: the index has {len(self)} items.")
        return k

    def _nearest(self, queries: Encoded, k: int) -> SearchHits:
        pairs = self.encoder.pairs
        hits = nearest(self.engine, queries, self.items.encoded, pairs, k, self.rank_by)
        _check_distances(hits)
        codes = self.items.label_codes
        if codes is None:
            return hits
        rows = hits.positions.cpu()
        labels = codes[rows.clamp(min=0)].masked_fill(rows < 0, -1).to(hits.positions.device)
        return replace(hits, votes=LabelVotes.of(hits.distance, labels))

    def _now(self) -> Self:
        """A copy, as it is now: what changes ``self`` later leaves it alone."""
        return copy.copy(self)

    def _replace(
        self, items: Items, remaining: Tensor | None, n_changes: int, next_id: int
    ) -> None:
        """Items and engine together; ``remaining`` rows of the old items, None where some came."""
        if self.engine.mapped:
            raise InputError("this index was loaded with mmap=True: load it without to change it.")
        vectors = vectors_of(items.encoded, self.rank_by, spherical=self.encoder.spherical)
        engine, changes = self.engine.updated(vectors, remaining), self.changes + n_changes
        self._state = replace(
            self._state, items=items, engine=engine, changes=changes, next_id=next_id
        )


def _check_distances(hits: SearchHits) -> None:
    fine = (
        hits.distance.isfinite() & hits.squared.mean.isfinite() & hits.squared.variance.isfinite()
    )
    bad = ~(fine | (hits.positions < 0)).all(1)
    if bool(bad.any()):
        raise NonFiniteError(
            f"distances of {int(bad.sum())} of {len(bad)} queries overflow {hits.distance.dtype}: "
            "scale the inputs of the index and the queries down, or use float64."
        )
