"""Items that can be searched, added and removed; ``Index`` adds what a match is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError
from laplace_metric.search._encoding import Encoded, Encoder, identity
from laplace_metric.search._items import Items
from laplace_metric.search._pair_distances import PairDistances
from laplace_metric.search._ranking import check_ranking, nearest, vectors_of
from laplace_metric.search.engines import Engine, EngineKind, build, kind_of
from laplace_metric.search.match import SearchHits

if TYPE_CHECKING:
    from typing_extensions import Self

    from laplace_metric.embedder import LaplaceEmbedder


class Gallery:
    """Items, the engine that finds the nearest of them, and the embedder that both come from.

    Parameters
    ----------
    embedder : LaplaceEmbedder
    items : Items
    kind : Flat | IVF | HNSW
    rank_by : "mean" | "expected" | "shared"
    engine : Engine or None
        None builds it.

    Attributes
    ----------
    identity : str
        Of the posterior that embedded the items.
    changes : int
        Items added and removed so far.
    next_id : int
        Number of the next item without an id; never given twice.
    """

    def __init__(
        self,
        embedder: LaplaceEmbedder,
        items: Items,
        kind: EngineKind,
        rank_by: str,
        engine: Engine | None = None,
    ) -> None:
        self.embedder, self.items, self.kind = embedder, items, kind
        self.rank_by = check_ranking(rank_by)
        self.identity = identity(embedder)
        self._pairs = PairDistances(embedder.fitted_, spherical=embedder.spherical)
        self._encoder = Encoder(embedder, self._pairs.words)
        self.engine = build(self._vectors(items), kind) if engine is None else engine
        self.changes = 0
        self.next_id = 0 if items.ids.words else int(items.ids.values.max()) + 1

    @classmethod
    def build(
        cls,
        embedder: LaplaceEmbedder,
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
        words = PairDistances(embedder.fitted_, spherical=embedder.spherical).words
        encoded, found = Encoder(embedder, words).all("gallery", gallery, progress=progress)
        return cls(embedder, Items.of(encoded, found, labels, ids), kind, rank_by)

    def __len__(self) -> int:
        return len(self.items)

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
        encoded, found = self._encoder.all("gallery", gallery, progress=progress)
        new = Items.of(encoded, found, labels, ids, self.next_id)
        self._change(self.items.joined(new), None, len(new))
        if not new.ids.words:
            self.next_id = max(self.next_id, int(new.ids.values.max()) + 1)

    def remove(self, ids: Any) -> None:
        """Remove items by their ids; O(N) a call.

        Raises
        ------
        InputError
            For ids that are not there, or if nothing would be left; nothing is removed then.
        """
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[self.items.rows_of(ids)] = False
        if not bool(kept.any()):
            raise InputError("ids name every item: an index cannot be empty.")
        rows = kept.nonzero().flatten()
        self._change(self.items.take(rows), rows, len(kept) - len(rows))

    def _check_depth(self, name: str, k: int) -> None:
        check_count(name, k)
        if k > len(self):
            raise InputError(f"{name}={k}: the index has {len(self)} items.")

    def _hits(self, queries: Encoded, k: int) -> SearchHits:
        return nearest(self.engine, queries, self.items.encoded, self._pairs, k, self.rank_by)

    def _vectors(self, items: Items) -> Tensor:
        return vectors_of(items.encoded, self.rank_by, spherical=self.embedder.spherical)

    def _change(self, items: Items, kept: Tensor | None, n: int) -> None:
        if self.engine.mapped:
            raise InputError("this index was loaded with mmap=True: load it without to change it.")
        self.engine = self.engine.changed(self._vectors(items), kept)
        self.items, self.changes = items, self.changes + n
