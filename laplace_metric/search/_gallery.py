"""Items that can be searched, added and removed; ``Index`` adds what a match is."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_share
from laplace_metric.calibration._hits import LabelledHits, LabelVotes, SearchHits
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.models._store import Fingerprints
from laplace_metric.search import _faiss as engines
from laplace_metric.search._encoding import Encoder, FittedEmbedder, SearchEncoder
from laplace_metric.search._engines import Engine, EngineKind, Flat
from laplace_metric.search._faiss import WithoutSome, kind_of
from laplace_metric.search._items import Encoded, Items
from laplace_metric.search._labelled import Matches, judge_of, warn_if_fitted
from laplace_metric.search._neighbours import check_ranking, nearest, vectors_of
from laplace_metric.search._storage import IndexState

if TYPE_CHECKING:
    from typing_extensions import Self


_LOG = logging.getLogger(__name__)
BLOCK = 4096
"""Items that are asked of the others at once."""


class Gallery(Shown):
    """Items, the engine that finds the nearest of them, and the encoders of items and queries.

    Any number of threads may search, add and remove at once. All that changes is one value that is
    never changed itself, only replaced: a search sees the items as they were when it was called.

    Parameters
    ----------
    encoder : SearchEncoder
        Of items.
    state : IndexState
    query_encoder : SearchEncoder or None
        Of queries; None: that of items.
    """

    def __init__(
        self,
        encoder: SearchEncoder,
        state: IndexState,
        query_encoder: SearchEncoder | None = None,
    ) -> None:
        self.encoder, self._state = encoder, state
        self.query_encoder = encoder if query_encoder is None else query_encoder
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
        compact: bool = False,
        progress: bool = True,
    ) -> Self:
        """See ``LaplaceEmbedder.index``."""
        how: dict[str, Any] = {"engine": engine, "rank_by": rank_by, "progress": progress}
        encoder = Encoder.of(embedder, compact=compact)
        return cls.between(encoder, None, gallery, labels, ids, **how)

    @classmethod
    def between(
        cls,
        encoder: SearchEncoder,
        query_encoder: SearchEncoder | None,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        engine: str | EngineKind = "flat",
        rank_by: str = "mean",
        progress: bool = True,
    ) -> Self:
        """Of items that one encoder reads, searched by queries that another one reads.

        Raises
        ------
        UnknownNameError
            For a ranking that the encoder does not have.
        """
        start = time.perf_counter()
        kind, rank_by = kind_of(engine), check_ranking(rank_by, encoder.rankings)
        encoded, batch_labels = encoder.all("gallery", gallery, progress=progress)
        items = Items.of(encoded, batch_labels, labels, ids)
        vectors = vectors_of(items.encoded, rank_by, spherical=encoder.spherical)
        next_id = 0 if items.ids.is_text else int(items.ids.values.max()) + 1
        state = IndexState(items, kind, rank_by, engines.build(vectors, kind), 0, next_id, None)
        index = cls(encoder, state, query_encoder)
        _LOG.info("indexed in %.1f s: %s", time.perf_counter() - start, index._sentence())
        return index

    def __len__(self) -> int:
        return len(self.items)

    def _sentence(self) -> str:
        classes = self.items.classes
        of = "without labels" if classes is None else f"of {len(classes):,} classes"
        return f"{len(self):,} items {of}."

    def _shown_rows(self) -> Rows:
        shown = {
            "embeddings": self.items.encoded.mean,
            "ids": self.ids,
            "labels": self.labels,
            "engine": f"{self.kind!r}, rank_by={self.rank_by!r}",
        }
        return in_rows(shown.items())

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
        self,
        queries: Any,
        labels: Any = None,
        k: int = 10,
        *,
        matches: Matches | None = None,
        strangers: float = 0.0,
        generator: Seed = None,
        progress: bool = False,
    ) -> LabelledHits:
        """The k nearest items of queries, and which of them are a match.

        Parameters
        ----------
        labels : [Q] whole numbers or strings, as those of the index; or from the loader
        matches : Q lists of ids, in place of labels
            All items that are a match of each query; an empty list where none is.
        strangers : float
            Share of queries without a match: as many as are missing are drawn by ``generator`` from
            the others, and find all items but those that are their match.

        Raises
        ------
        LabelError
            For an index or queries without labels, without matches too; or with both.
        InputError
            For labels of another type than those of the index, another number of lists than of
            queries, or ids that are not in the index.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior.
        """
        self, k = self._now(), check_count("k", k)
        read = judge_of(self.items, labels, matches)
        known_rows, rows = self.query_encoder.fitted_rows, list[Fingerprints]()
        encoder = self.query_encoder
        encoded, batch_labels = encoder.all("queries", queries, progress=progress, rows=rows)
        if rows:
            warn_if_fitted(known_rows, np.concatenate(rows))
        judge, depth = read(encoded, batch_labels), min(k, len(self))
        found = judge(self._nearest(encoded, depth))
        rows_without = _turned_strange(judge.known, strangers, generator)
        if not len(rows_without):
            return found
        others = judge.others(self._exact(), rows_without, len(self))
        asked = encoded.take(rows_without.to(encoded.mean.device))
        pretended = judge.pretended(self._nearest(asked, depth, others))
        order = torch.arange(len(found))
        order[rows_without] = len(found) + torch.arange(len(rows_without))
        joined = LabelledHits.concatenate([found, pretended])
        return joined.take(order.to(found.match.device))

    def _exact(self) -> Engine:
        """An approximate engine looks where a query's own class is, and finds few others."""
        if isinstance(self.kind, Flat):
            return self.engine
        spherical = self.encoder.spherical
        return engines.build(
            vectors_of(self.items.encoded, self.rank_by, spherical=spherical), Flat()
        )

    def _others(self, k: int) -> Iterator[LabelledHits]:
        """What each item finds among the others, block by block."""
        judge = judge_of(self.items, self.labels, None)(self.items.encoded, [])
        for own in torch.arange(len(self)).split(BLOCK):

            def itself(rows: Tensor, part: slice, own: Tensor = own) -> Tensor:
                return rows == own[part, None].to(rows.device)

            engine = WithoutSome(self.engine, itself, 1, len(self))
            asked = self.items.encoded.take(own.to(self.items.encoded.mean.device))
            yield judge.of_some(self._nearest(asked, k, engine), own)

    def _check_k(self, name: str, k: int) -> int:
        k = check_count(name, k)
        if k > len(self):
            raise InputError(f"{name}={k}: the index has {len(self)} items.")
        return k

    def _nearest(self, queries: Encoded, k: int, engine: Engine | None = None) -> SearchHits:
        pairs, engine = self.encoder.pairs, self.engine if engine is None else engine
        hits = nearest(engine, queries, self.items.encoded, pairs, k, self.rank_by)
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


def _turned_strange(known: Bool[Tensor, " Q"], share: float, generator: Seed) -> Int[Tensor, " n"]:
    """Known queries [n] that make up what is missing of a ``share`` of all that are not."""
    if share == 0:
        return torch.zeros(0, dtype=torch.long)
    check_share("strangers", share)
    missing = round(share * len(known)) - int((~known).sum())
    source = as_generator(0 if generator is None else generator)
    assert source is not None
    rows = known.nonzero().flatten()
    order = torch.randperm(len(rows), generator=source, device=source.device).cpu()
    return rows[order[: max(0, missing)]]


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
