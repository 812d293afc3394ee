"""``Index``: a gallery of uncertain embeddings that says which of its items are a match."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError, LabelError, NotFittedError, StaleCalibrationWarning
from laplace_metric.search import _storage as storage
from laplace_metric.search._gallery import Gallery
from laplace_metric.search._items import Items
from laplace_metric.search._result import RetrievalSets, SearchResult
from laplace_metric.search.match import (
    Calibration,
    LabelledHits,
    PairFeatures,
    calibrated,
    check_alpha,
    credible_radius,
)

if TYPE_CHECKING:
    from laplace_metric.embedder import LaplaceEmbedder

GROWTH = 0.1
"""A calibration is stale once the index has changed by more than this share of its items."""


class Index(Gallery):
    """Items to search among; made by ``LaplaceEmbedder.index``.

    Parameters
    ----------
    embedder : LaplaceEmbedder
        Its posterior as it is now counts: tune it first.
    items : Items
    kind : Flat | IVF | HNSW
    rank_by : "mean" | "expected" | "shared"
    engine : Engine or None
        None builds it.
    calibration : Calibration or None

    Examples
    --------
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 8
    >>> x = torch.nn.functional.one_hot(y, 8) + 0.6 * torch.randn(400, 8, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[:200], y[:200])
    >>> index.search(x[200:203], k=5).labels.shape
    (3, 5)
    >>> calibration = index.calibrate(x[200:], y[200:])
    >>> result = index.search(x[:3], k=5)
    >>> result.match_probability.shape, result.unknown.shape
    (torch.Size([3, 5]), torch.Size([3]))
    """

    def __init__(self, *parts: Any, calibration: Calibration | None = None, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.calibration = calibration

    def search(
        self, queries: Any, k: int = 10, *, alpha: float = 0.05, progress: bool = False
    ) -> SearchResult:
        """The k nearest items of each query.

        Parameters
        ----------
        queries : one batch of inputs (an array, a list of texts, a mapping) or a loader
        k : int
        alpha : float
            Share of queries with a match in the index that may be called ``unknown``.

        Raises
        ------
        InputError
            For a k above the number of items.

        Warns
        -----
        StaleCalibrationWarning
            If the index has changed by more than a tenth since it was calibrated.
        """
        check_alpha(alpha)
        self._check_depth("k", k)
        encoded, _ = self._encoder.all("queries", queries, progress=progress)
        hits = self._hits(encoded, self._depth(k))
        judged: dict[str, Any] = {"match_probability": None, "p_value": None}
        if self.calibration is not None:
            logit = self._fresh(self.calibration).matcher.logit(PairFeatures.of(hits))
            judged["match_probability"] = self.calibration.matcher(logit[:, :k])
            judged["p_value"] = self.calibration.p_value(hits, logit)
        columns = self.items.ids, self.items.labels
        return SearchResult.of(hits.nearest(k), *columns, alpha=alpha, **judged)

    def calibrate(
        self,
        queries: Any,
        labels: Any = None,
        k: int = 10,
        *,
        depth: int = 50,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> Calibration:
        """Learn from held-out labelled queries what a match looks like; kept as ``calibration``.

        They should be as the queries to come: not seen in training nor in the fit, not items of
        the index, of classes that training did not see if those to come are, and with as many
        queries without a match as are to come. One half teaches the probability, the other half
        the thresholds and conformal tests, which need to be independent of it.

        Parameters
        ----------
        queries : as for ``search``
        labels : [Q] whole numbers or strings, as those of the index; or from the loader
        k : int
            Neighbours whose pairs count; a search for more extrapolates to deeper ranks.
        depth : int
            Neighbours that retrieval sets may choose from.
        generator : torch.Generator or None
            Splits the queries; None: one with a fixed seed.

        Raises
        ------
        LabelError, InputError
            For an index or queries without labels, too few queries, all pairs matching or none.
        """
        for name, value in (("k", k), ("depth", depth)):
            check_count(name, value)
        judged = self.judge(queries, labels, max(k, depth), progress=progress)
        source = torch.Generator().manual_seed(0) if generator is None else generator
        self.calibration = calibrated(judged, min(k, len(self)), len(self), source)
        self.changes = 0
        return self.calibration

    def judge(
        self, queries: Any, labels: Any = None, k: int = 10, *, progress: bool = False
    ) -> LabelledHits:
        """Search for labelled queries and compare their labels with those of what is found."""
        if self.items.labels is None:
            raise LabelError("the index has no labels: pass labels= to embedder.index.")
        encoded, found = self._encoder.all("queries", queries, progress=progress)
        own = Items.of(encoded, found, labels, None).labels
        if own is None:
            raise LabelError("queries have no labels: pass labels=, or a loader that yields them.")
        self.items.labels.check_like("labels", own)
        check_count("k", k)
        hits = self._hits(encoded, min(k, len(self)))
        theirs = self.items.labels.values[hits.positions.clamp(min=0).cpu().numpy()]
        match = torch.from_numpy(np.asarray(own.values[:, None] == theirs, dtype=bool))
        match = match.to(hits.positions.device) & (hits.positions >= 0)
        known = torch.from_numpy(self.items.labels.codes_of(own.values) >= 0)
        return LabelledHits(hits, match, known.to(match.device))

    def retrieval_sets(
        self, queries: Any, alpha: float = 0.1, *, progress: bool = False
    ) -> RetrievalSets:
        """Sets that hold a true match with probability 1 - alpha or more, if there is one.

        Split conformal prediction, valid if these queries are exchangeable with the held-out ones:
        see ``matching.conformal``, and ``matching.first_match`` for what is in a set. It is empty
        where nothing looks like a match.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        InputError
            If too many held-out queries had no match among their ``depth`` nearest items.
        """
        if self.calibration is None:
            raise NotFittedError("this index is not calibrated: call index.calibrate(...) first.")
        calibration = self._fresh(self.calibration)
        encoded, _ = self._encoder.all("queries", queries, progress=progress)
        hits = self._hits(encoded, min(calibration.depth, len(self)))
        members = calibration.members(calibration.matcher.logit(PairFeatures.of(hits)), alpha)
        return RetrievalSets(hits.positions, members, self.items.ids)

    def credible_sets(
        self, queries: Any, probability: float = 0.95, *, depth: int = 50, progress: bool = False
    ) -> RetrievalSets:
        """The items that lie in the credible cap of each query's own posterior.

        Kirchhof et al. 2023, section 5.3: see ``matching.credible``. It promises nothing about
        labels.

        Raises
        ------
        InputError
            If embeddings are no directions, or for a probability outside [0, 1].
        """
        if not self.embedder.spherical:
            raise InputError("credible_sets needs embeddings on the sphere: distance='arccos'.")
        check_count("depth", depth)
        encoded, _ = self._encoder.all("queries", queries, progress=progress)
        found = self._hits(encoded, min(depth, len(self)))
        radius = credible_radius(encoded.trace, encoded.mean.shape[1], probability)
        members = found.distance <= radius[:, None]
        return RetrievalSets(found.positions, members, self.items.ids)

    def save(self, path: str | Path) -> None:
        """Write everything but the embedder to folder ``path``: safetensors, JSON, atomic."""
        storage.save(Path(path), self)

    @classmethod
    def load(cls, path: str | Path, embedder: LaplaceEmbedder, *, mmap: bool = False) -> Index:
        """Read what ``save`` wrote, for the posterior that it was built with.

        Parameters
        ----------
        mmap : bool
            Leave embeddings on disk and read what a search touches; files are not hashed then,
            and items can be neither added nor removed.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, or of another posterior. What stands before the
            head of the model is not checked.
        """
        return storage.load(cls, Path(path), embedder, mmap=mmap)

    def _depth(self, k: int) -> int:
        """Neighbours to look at, so that a calibration sees what it saw on held-out queries.

        Its best score is that of its own k; the shortlist of "shared" grows with the depth.
        """
        if self.calibration is None:
            return k
        shared = self.rank_by == "shared"
        needed = self.calibration.depth if shared else self.calibration.k
        return min(max(k, needed), len(self))

    def _fresh(self, calibration: Calibration) -> Calibration:
        if self.changes > GROWTH * calibration.n_items:
            warnings.warn(
                f"{self.changes} items were added or removed since the index was calibrated with "
                f"{calibration.n_items}: probabilities and sets may be off. Calibrate again.",
                StaleCalibrationWarning,
                stacklevel=3,
            )
        return calibration
