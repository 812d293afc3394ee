"""``Index``: a gallery of uncertain embeddings that says which of its items are a match."""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laplace_metric._utils.display import Rows
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_path, check_count, check_share
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._conformal import credible_radius
from laplace_metric.calibration._hits import VOTES, LabelledHits, SearchHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.errors import (
    InputError,
    NotFittedError,
    StaleCalibrationWarning,
    UnreachableAlphaWarning,
)
from laplace_metric.search import _storage as storage
from laplace_metric.search._classify import CalibratedAnswers
from laplace_metric.search._encoding import FittedEmbedder, SearchableEmbedder, encoders_of
from laplace_metric.search._evaluate import evaluated
from laplace_metric.search._gallery import Gallery
from laplace_metric.search._label_sets import LabelReview, LabelSets, reviewed, warn_if_everything
from laplace_metric.search._labelled import Matches
from laplace_metric.search._report import IndexReport
from laplace_metric.search._result import RetrievalSets, SearchResult

if TYPE_CHECKING:
    from typing_extensions import Self


GROWTH = 0.1
"""A calibration is stale once the index has changed by more than this share of its items."""
DEPTH = 50
"""Neighbours of each query that an evaluation looks at where there is no calibration to say."""


_LOG = logging.getLogger(__name__)


class Index(CalibratedAnswers, Gallery):
    """Items to search among; made by ``LaplaceEmbedder.index``.

    Parameters
    ----------
    encoder : SearchEncoder
        Of an embedder, whose posterior as it is now counts: tune it first.
    state : IndexState
    query_encoder : SearchEncoder or None
        Where queries are of another kind than items, such as texts that find images.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 8
    >>> x = torch.nn.functional.one_hot(y, 8) + 0.6 * torch.randn(400, 8, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[:200], y[:200])
    >>> index.search(x[200:203], k=5).labels.shape
    (3, 5)
    >>> calibration = index.calibrate(x[200:300], y[200:300])
    >>> result = index.search(x[:3], k=5)
    >>> result.match_probability.shape, result.unknown.shape
    (torch.Size([3, 5]), torch.Size([3]))
    >>> round(index.evaluate(x[300:], y[300:]).recall_at_1, 2)
    0.44
    """

    def _shown_rows(self) -> Rows:
        calibration = "none: call calibrate(queries, labels)"
        if self.calibration is not None:
            calibration = self.calibration._sentence()
        changed = [("changed since", f"{self.changes:,} items")] if self.changes else []
        return [*super()._shown_rows(), ("calibration", calibration), *changed]

    @property
    def calibration(self) -> Calibration | None:
        """What a match looks like; None before ``calibrate``."""
        return self._state.calibration

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
        UnreachableAlphaWarning
            If too few queries were held out for anything to be unknown at ``alpha``.
        """
        self = self._now()
        check_share("alpha", alpha)
        k = self._check_k("k", k)
        encoded, _ = self.query_encoder.all("queries", queries, progress=progress)
        hits = self._nearest(encoded, self._depth(k))
        judgement = None
        if self.calibration is not None:
            judgement = self._fresh(self.calibration).judge(hits)
            _warn_if_unreachable(self.calibration, alpha)
        return SearchResult.of(hits, self.items.ids, self.items.labels, judgement, k, alpha)

    def calibrate(
        self,
        queries: Any,
        labels: Any = None,
        k: int = 10,
        *,
        matches: Matches | None = None,
        depth: int = 50,
        portable: bool = False,
        strangers: float = 0.0,
        generator: Seed = None,
        progress: bool = False,
    ) -> Calibration:
        """Learn from held-out queries what a match looks like; kept as ``calibration``.

        They should be as the queries to come: in neither training nor the fit, not items of
        the index, of classes that were not in training if those to come are, and with as many
        queries without a match as are to come, or ``strangers``. One half teaches the probability,
        the other half the thresholds and conformal tests, which need to be independent of it.

        Parameters
        ----------
        queries : as for ``search``
        labels : [Q] whole numbers or strings, as those of the index; or from the loader
        matches : Q lists of ids, in place of labels
            Of each query all items of the index that are a match, an empty list where none is: a
            relevance judgement. Nothing is learnt of labels then: ``label`` of a search is None.
        k : int
            Neighbours whose pairs count; a search for more extrapolates to deeper ranks.
        depth : int
            Neighbours that retrieval sets may choose from.
        portable : bool
            Leave out what only this index knows, the deviation of each distance, so that
            ``Calibration.apply`` says the same of the hits of another engine.
        strangers : float
            Share of the queries to come that have no match. Of the queries that have one, as many
            as are missing of this share are drawn, and find all items but their matches: strangers
            as like the index as its own classes are like each other. Promises hold for such. With
            few classes, a new one may be more like one of them than they are.
        generator : torch.Generator, seed or None
            Draws them, and splits the queries; None: one with a fixed seed.

        Raises
        ------
        LabelError
            For an index or queries without labels, where there are no matches; and for both.
        InputError
            For too few queries, another number of lists than of queries, or ids of no item.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior.
        """
        k, depth = check_count("k", k), check_count("depth", depth)
        now = self._now()
        deepest = max(k, depth, VOTES)
        how: dict[str, Any] = {"matches": matches, "progress": progress}
        if strangers:  # else the generator is left to the split
            generator = as_generator(0 if generator is None else generator)
            how |= {"strangers": strangers, "generator": generator}
        labelled = now.labelled_hits(queries, labels, deepest, **how)
        return self._learn(labelled, k, generator, now, portable=portable)

    def learn(
        self,
        labelled: LabelledHits,
        k: int = 10,
        generator: Seed = None,
        *,
        portable: bool = False,
        cross_fitted: bool = False,
    ) -> Calibration:
        """As ``calibrate``, from what queries found in this index or in one like it.

        Parameters
        ----------
        labelled : LabelledHits
            Of ``labelled_hits``; of as many neighbours as an evaluation is to look at, 20 or more.
        portable : bool
            As for ``calibrate``.
        cross_fitted : bool
            Whether the queries are items of this index; ``Calibration.cross_fitted`` says so.

        Raises
        ------
        InputError
            For too few queries.
        """
        k, now = check_count("k", k), self._now()
        return self._learn(
            labelled, k, generator, now, portable=portable, cross_fitted=cross_fitted
        )

    def _learn(
        self,
        labelled: LabelledHits,
        k: int,
        generator: Seed,
        now: Self,
        *,
        portable: bool = False,
        cross_fitted: bool = False,
    ) -> Calibration:
        source = as_generator(0 if generator is None else generator)
        assert source is not None
        sizes = min(k, len(now)), len(now)
        calibration = calibrated(labelled, *sizes, source, portable=portable)
        calibration = replace(calibration, cross_fitted=cross_fitted)
        _LOG.info("calibrated %s", calibration._sentence())
        with self._changing:  # what changed meanwhile is news to the calibration
            changes = self.changes - now.changes
            self._state = replace(self._state, calibration=calibration, changes=changes)
        return calibration

    def evaluate(
        self,
        queries: Any,
        labels: Any = None,
        ood: Any = None,
        *,
        matches: Matches | None = None,
        depth: int | None = None,
        progress: bool = False,
    ) -> IndexReport:
        """Measure on queries with labels or matches how much the answers can be trusted.

        Parameters
        ----------
        queries : as for ``search``
            Neither items of the index, nor of the fit, nor those that it was calibrated with.
        labels : [Q] whole numbers or strings, as those of the index; or from the loader
        matches : Q lists of ids, in place of labels
            As for ``calibrate``.
        ood : as for ``search``, optional
            Out-of-distribution inputs, of which none has a match in the index.
        depth : int or None
            Neighbours of each query to look at; None: as many as the calibration did, or 50.

        Raises
        ------
        LabelError, InputError
            As ``calibrate``.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior.
        StaleCalibrationWarning
            If the index has changed by more than a tenth since it was calibrated.
        """
        self = self._now()
        calibration = None if self.calibration is None else self._fresh(self.calibration)
        if depth is None:
            depth = DEPTH if calibration is None else calibration.depth
        depth = max(check_count("depth", depth), VOTES)
        how: dict[str, Any] = {"matches": matches, "progress": progress}
        labelled = self.labelled_hits(queries, labels, depth, **how)
        ood_hits = None
        if ood is not None:
            encoded, _ = self.query_encoder.all("ood", ood, progress=progress)
            ood_hits = self._nearest(encoded, min(depth, len(self)))
        return evaluated(labelled, calibration, ood_hits)

    def retrieval_sets(
        self, queries: Any, alpha: float = 0.1, *, progress: bool = False
    ) -> RetrievalSets:
        """Sets that hold a true match with probability 1 - alpha or more, if there is one.

        Split conformal prediction, valid if these queries are exchangeable with the held-out ones:
        a set holds the likeliest first matches. It is empty where nothing looks like a match.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        InputError
            If too many held-out queries had no match among their ``depth`` nearest items.
        """
        self = self._now()
        calibration = self._fresh(self._calibrated())
        hits = self._deep_hits(queries, calibration, progress=progress)
        members = calibration.members(calibration.judge(hits).logit, alpha)
        return RetrievalSets(hits.positions, members, self.items.ids)

    def label_sets(
        self,
        queries: Any,
        alpha: float = 0.1,
        *,
        by_class: bool = True,
        confidence: float | None = None,
        progress: bool = False,
    ) -> LabelSets:
        """Sets of labels that hold the query's, class by class, with probability 1 - alpha or more.

        Split conformal prediction with the probabilities of the neighbours' labels
        (``search.match._labels`` has the equations). It is valid if these queries are exchangeable
        with the held-out ones, and says nothing of a query whose label the index does not have.
        Who is promised what, on average over held-out sets:

        - A class with at least 5 / alpha - 1 held-out queries in the second half of the calibration
          (49 for 0.1; so about 100 in all): 1 - alpha of its own queries (Mondrian).
        - The other classes: 1 - alpha of the queries of all such classes that are about as hard,
          but not of each of them (clustered, after Ding et al. 2023).
        - With ``by_class=False``: 1 - alpha of all queries together, of no class alone.

        One held-out set gives a class a coverage that is Beta distributed about 1 - alpha: at 0.1
        and 150 queries in the second half with a standard deviation of 2.4 per cent. With
        ``confidence`` it is 1 - alpha or more for that share of the held-out sets, and sets are
        larger.

        A label is in every set (``LabelSets.everywhere``) where a share alpha of the held-out
        queries of its class or cluster had no item of their label among the ``depth`` nearest.

        Parameters
        ----------
        queries : as for ``search``
        alpha : float
            Share of the queries of a class whose set may miss their label.
        by_class : bool
            A level for each class; False: one for all labels.
        confidence : float or None
            That a class is covered by 1 - alpha or more; None: on average over held-out sets.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, or if it was given matches, or saved by 0.1.0.
        InputError
            For an alpha or a confidence outside (0, 1).

        Warns
        -----
        UnreachableAlphaWarning
            If too few queries were held out for any level: every set holds every label.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> index = embedder.index(x[100:200], y[100:200], progress=False)
        >>> calibration = index.calibrate(x[200:300], y[200:300])
        >>> sets = index.label_sets(x[300:], alpha=0.2)
        >>> sets[1], sets.sizes.shape, int(sets.everywhere.sum())
        (array([3]), torch.Size([100]), 0)
        """
        self = self._now()
        calibration = self._fresh(self._calibrated())
        held_out = calibration.held_out_labels()
        hits = self._deep_hits(queries, calibration, progress=progress)
        assert self.items.classes is not None  # labels calibrated it
        levels = held_out.levels(alpha, by_class=by_class, confidence=confidence)
        warn_if_everything(levels, alpha)
        return LabelSets.of(hits, self.items.classes, calibration, levels)

    def suspicious_labels(self, most: int = 100) -> LabelReview:
        """The items whose label looks most wrong to their neighbours; no model runs.

        Each item is asked of all others, and judged by the calibration. A label that a whole corner
        of the data shares is not found, however wrong; one that no other item has is left out.

        Parameters
        ----------
        most : int
            Items to name.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, or if it was given matches.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(300) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.2 * torch.randn(300, 4, generator=g)
        >>> y[:3] = (y[:3] + 1) % 4  # wrong
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> review = embedder.cross_index(x, y, progress=False).suspicious_labels(3)
        >>> sorted(review.ids.tolist()), review.suggested[review.ids.argsort()].tolist()
        ([0, 1, 2], [0, 1, 2])
        """
        self, most = self._now(), check_count("most", most)
        calibration = self._fresh(self._calibrated())
        calibration.held_out_labels()  # says why not, where matches calibrated it
        assert self.labels is not None
        others = self._others(min(max(calibration.depth, VOTES), len(self)))
        return reviewed(others, calibration, self.items, most)

    def credible_sets(
        self, queries: Any, probability: float = 0.95, *, depth: int = 50, progress: bool = False
    ) -> RetrievalSets:
        """The items that lie in the credible cap of each query's own posterior.

        Kirchhof et al. 2023, section 5.3. It promises nothing about labels.

        Raises
        ------
        InputError
            If embeddings are no directions, or for a probability outside [0, 1].
        """
        self = self._now()
        if not self.encoder.spherical:
            raise InputError("credible_sets needs embeddings on the sphere: distance='arccos'.")
        depth = check_count("depth", depth)
        encoded, _ = self.query_encoder.all("queries", queries, progress=progress)
        hits = self._nearest(encoded, min(depth, len(self)))
        radius = credible_radius(encoded.trace, encoded.mean.shape[1], probability)
        members = hits.distance <= radius[:, None]
        return RetrievalSets(hits.positions, members, self.items.ids)

    def save(self, path: str | Path) -> None:
        """Write everything but the embedder to folder ``path``: safetensors, JSON, atomic."""
        storage.save_index(as_path("path", path), self._state, self.encoder.identity)

    @classmethod
    def load(
        cls,
        path: str | Path,
        embedder: FittedEmbedder | SearchableEmbedder,
        *,
        mmap: bool = False,
        verify: bool | None = None,
    ) -> Index:
        """Read what ``save`` wrote, for the posterior that it was built with.

        Parameters
        ----------
        embedder : LaplaceEmbedder, or ImageTextEmbedder
        mmap : bool
            Leave embeddings on disk and read what a search touches; items can be neither added
            nor removed then.
        verify : bool, optional
            Hash every file. None: unless ``mmap``, where only headers and JSON are hashed.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, or of another posterior. What stands before the
            head of the model is not checked.
        """
        encoders = encoders_of(embedder)
        identities, folder = [items.identity for items, _ in encoders], as_path("path", path)
        state, which = storage.load_index(folder, identities, mmap=mmap, verify=verify)
        items, queries = encoders[which]
        return cls(items, state, queries)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise NotFittedError(
                "this index is not calibrated: call index.calibrate(...) first, or build it with "
                "embedder.cross_index(items, labels), which calibrates by the items themselves."
            )
        return self.calibration

    def _deep_hits(self, queries: Any, calibration: Calibration, *, progress: bool) -> SearchHits:
        """As deep as the calibration looked."""
        encoded, _ = self.query_encoder.all("queries", queries, progress=progress)
        return self._nearest(encoded, min(calibration.depth, len(self)))

    def _depth(self, k: int) -> int:
        """Neighbours to look at, so that a calibration sees what it saw on held-out queries.

        The labels of ``VOTES`` neighbours vote. Rankings other than "mean" need the whole depth:
        the p-value uses the smallest distance of the means, which need not be that of the first
        hit, and the shortlist of "shared" grows with the depth.
        """
        needed = 0 if self.labels is None else VOTES
        if self.calibration is not None and self.rank_by != "mean":
            needed = self.calibration.depth
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


def _warn_if_unreachable(calibration: Calibration, alpha: float) -> None:
    smallest = calibration.smallest_p_value
    if smallest > alpha:
        warnings.warn(
            f"alpha={alpha:g}: with {len(calibration.statistics)} held-out queries that have a "
            f"match no p-value is below {smallest:.3g}, so nothing is called unknown. Calibrate "
            f"with {math.ceil(min(1 / alpha - 1, 1e18))} of them, or raise alpha.",
            UnreachableAlphaWarning,
            stacklevel=3,
        )
