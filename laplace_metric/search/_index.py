"""``Index``: a gallery of uncertain embeddings that says which of its items are a match."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.keywords import made_otherwise, named_keywords
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    as_path,
    check_count,
    check_fraction,
    check_real,
    check_share,
    refuse_reloaded,
    shown_argument,
)
from laplace_metric.calibration._calibrated import calibrated
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._counted_once import warn_of_copies
from laplace_metric.calibration._group_column import read_groups
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration.guarantees._open_set_fraction import Fraction
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes
from laplace_metric.calibration.rules._answers import Answers
from laplace_metric.calibration.rules._class_rule import ClassRule
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.calibration.rules._level_rule import LevelRule
from laplace_metric.calibration.rules._rule import LIKELIER_THAN_NOT, Rule
from laplace_metric.calibration.rules._searched_among import SearchedAmong
from laplace_metric.errors import (
    CallError,
    InputError,
    LabelError,
    NotFittedError,
    StaleCalibrationWarning,
    UnreachableAlphaWarning,
    callers_line,
)
from laplace_metric.evaluation import expected_calibration_error
from laplace_metric.inputs._columns import Column
from laplace_metric.inputs._labels import joined_labels
from laplace_metric.io import Part, SavedFile, write
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.search import _storage as storage
from laplace_metric.search._among import rows_among, search_among
from laplace_metric.search._answer_report import AnswerReport
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._encoder import encoders_of
from laplace_metric.search._equal_vectors import equal_vectors, first_rows
from laplace_metric.search._evaluate import evaluated
from laplace_metric.search._items import Items
from laplace_metric.search._near_copies import warn_of_near_copies
from laplace_metric.search._protocols import FittedEmbedder, SearchableEmbedder, SearchEncoder
from laplace_metric.search._relevance import Matches, relevance_of
from laplace_metric.search._report import IndexReport
from laplace_metric.search._result import SearchResult
from laplace_metric.search._storage import IndexState
from laplace_metric.search._trained_items import warn_if_fitted
from laplace_metric.search._views import CENTRED_ON, Views
from laplace_metric.search.classes._class_model import ClassModel, cross_fitted, inputs_of
from laplace_metric.search.classes._label_review import LabelReview, reviewed
from laplace_metric.search.classes._label_sets import LabelSets, RetrievalSets, warn_if_everything
from laplace_metric.search.classes._near_names import warn_of_near_names
from laplace_metric.search.engines import _built_engine
from laplace_metric.search.engines._engine import Engine, EngineKind, Flat, FlatEngine, kind_of
from laplace_metric.search.engines._foreign_engine import LEAST_FOUND, ForeignEngine
from laplace_metric.search.engines._found_shares import NEAREST, shares_found
from laplace_metric.search.rank._chosen_ranking import chosen_ranking, exploring, settled
from laplace_metric.search.rank._neighbours import RowSearch, nearest, without_some
from laplace_metric.search.rank._rankings import AUTO, Predictive, PredictiveRanking, Ranking

if TYPE_CHECKING:
    from laplace_metric.plots import Figure


DEPTH = 50
"""Neighbours of each query that an evaluation uses if there is no calibration."""
WORSE = 0.05
"""Fewer of the nearest items, as a share, that a search finds than the one that calibrated."""
BLOCK = 4096
"""Items that are searched among the others at once."""
MADE = (
    "an index is made by an embedder. Call embedder.index(items, labels), of vectors with embedder "
    "= LaplaceEmbedder.from_embeddings(items, labels); Index.load(path, embedder) reads a saved "
    "one."
)
"""How an index is made, for errors."""


_LOG = logging.getLogger(__name__)


class Index(Shown):
    """Items to search among; made by ``LaplaceEmbedder.index``.

    Any number of threads may search, add and remove at once. All that changes is one value that is
    never changed itself, only replaced: a search sees the items as they were when it was called.

    Parameters
    ----------
    encoder : SearchEncoder
        Encoder of the items. It holds the posterior of an embedder as it is now: tune it first.
    state : IndexState
        Items, engine and calibration, replaced as a whole by each change.
    query_encoder : SearchEncoder or None
        Encoder of queries of another kind than the items, such as texts that find images. None, the
        default: ``encoder``.

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
    0.41
    """

    @made_otherwise(MADE)
    def __init__(
        self,
        encoder: SearchEncoder,
        state: IndexState,
        query_encoder: SearchEncoder | None = None,
    ) -> None:
        if not isinstance(state, IndexState):
            raise CallError(f"Index({type(encoder).__name__}, {type(state).__name__}): {MADE}")
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
        encoder: SearchEncoder,
        gallery: Any,
        labels: Any = None,
        ids: Any = None,
        *,
        query_encoder: SearchEncoder | None = None,
        engine: str | EngineKind = "flat",
        rank_by: str | Predictive = AUTO,
        progress: bool = False,
    ) -> Index:
        """Index items that ``encoder`` reads; see ``LaplaceEmbedder.index``.

        Parameters
        ----------
        encoder : SearchEncoder
            Encoder of the items.
        gallery : inputs (an array, a list of texts, a mapping) or a loader of batches
            Items of the index. A loader may yield ``(inputs, labels)``.
        labels : [N] whole numbers or strings, or None
            Class of each item. None, the default: items have none, unless the loader yields them.
        ids : [N] whole numbers or strings, or None
            Name of each item. None, the default: items are numbered from 0.
        query_encoder : SearchEncoder or None
            Encoder of queries of another kind. None, the default: ``encoder``.
        engine : "flat" | "ivf" | "hnsw", or ``search.Flat``, ``IVF``, ``HNSW`` with settings
            Search engine: exact, or approximate by FAISS for large galleries. Default: "flat",
            exact.
        rank_by : "auto" | "mean" | "predictive" | "expected" | "shared", or ``search.Predictive``
            Ranking of the items, as for ``LaplaceEmbedder.index``. "expected" is for encoders whose
            variances are trained: with a posterior it was right for 0.25 to 0.78 of queries, "mean"
            for 0.79. Default: "auto".
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        CallError
            For anything but an encoder, such as an embedder, which makes an index itself.
        UnknownNameError
            For a ranking that the encoder does not have.
        """
        if not hasattr(encoder, "with_layer"):
            raise CallError(f"Index.build({type(encoder).__name__}, ...): {MADE}")
        start = time.perf_counter()
        kind = kind_of(engine)
        inputs = encoder.read("gallery", gallery, labels)
        inputs.check_columns(ids=ids)
        reader = exploring(rank_by, inputs.count, encoder)
        encoded, batch_labels = reader.all(inputs, progress=progress)
        items = Items.of(encoded, batch_labels, inputs.labels, ids)
        ranking = chosen_ranking(rank_by, items, reader)
        items = settled(ranking, items, reader)
        vectors = ranking.item_vectors(items.encoded)
        next_id = 0 if items.ids.is_text else int(items.ids.values.max()) + 1
        state = IndexState(items, ranking, _built_engine.build(vectors, kind), 0, next_id, None)
        index = cls._made_of(encoder, state, query_encoder)
        _LOG.info("indexed in %.1f s: %s", time.perf_counter() - start, index._sentence())
        return index

    def __len__(self) -> int:
        return len(self.items)

    def _sentence(self) -> str:
        classes = self.items.classes
        of = "without labels" if classes is None else f"of {len(classes):,} classes"
        if classes is not None and len(classes) == len(self) > 1:
            of = "each of another class: are the labels ids?"
            return f"{len(self):,} items, {of}"
        return f"{len(self):,} items {of}."

    def _shown_rows(self) -> Rows:
        calibration = "none: call calibrate(queries, labels)"
        if self.calibration is not None:
            calibration = self.calibration._sentence()
        shown = {
            "embeddings": self.items.encoded.mean,
            "ids": self.ids,
            "labels": self.labels,
            "engine": f"{self.kind!r}, rank_by={self.rank_by!r}",
            "calibration": calibration,
        }
        if isinstance(self.ranking, PredictiveRanking):
            shown["predictive"] = str(self.ranking)
            if self.ranking.gain is not None:
                before, after = self.ranking.gain
                shown["nearest right"] = f"{after:.1%} of items, by 'mean' {before:.1%}"
        if self.changes:
            shown["changed since"] = f"{self.changes:,} items"
        return in_rows(shown.items())

    @property
    def items(self) -> Items:
        """Items with their embeddings, ids and labels."""
        return self._state.items

    @property
    def engine(self) -> Engine:
        """Engine that finds the nearest items."""
        return self._state.engine

    @property
    def kind(self) -> EngineKind:
        """Name and settings of the engine."""
        return self.engine.kind

    @property
    def rank_by(self) -> str:
        """Meaning of "nearest": "mean", "predictive", "expected" or "shared"."""
        return self.ranking.name

    @property
    def ranking(self) -> Ranking:
        """Ranking of the items, with the numbers that it was given; ``print`` shows it."""
        return self._state.ranking

    @property
    def changes(self) -> int:
        """Items added and removed since the calibration, or so far."""
        return self._state.changes

    @property
    def change(self) -> GalleryChange | None:
        """Change of the gallery since its calibration; None without either."""
        return self._state.change

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        """Ids of all items [N], in the order in which they were added."""
        return self.items.ids.values

    @property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Labels of all items [N], if they have any."""
        return None if self.items.labels is None else self.items.labels.values

    @property
    def class_model(self) -> ClassModel | None:
        """Class model of the gallery, where a calibration by labels has learnt one."""
        return self._state.class_model

    @property
    def calibration(self) -> Calibration | None:
        """Fitted calibration; None before ``calibrate``."""
        return self._state.calibration

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        of: Any = None,
        alpha: float = 0.05,
        among: Any = None,
        progress: bool = False,
    ) -> SearchResult:
        """Return the k nearest items of each query.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q inputs of the model, or of the query encoder.
        k : int
            Number of items for each query, from 1 to the number of items. Default: 10.
        of : [n] whole numbers or strings, or None
            Id of the thing that each of n rows is a view of, such as the track of a frame or the
            listing of a photograph: the views of one id are one query, in the order of their first
            rows. None, the default: each row is a query.
        alpha : float in (0, 1)
            Share of queries with a match in the index that may be called ``unknown``. A larger one
            finds more open-set queries. It needs a calibration. Default: 0.05.
        among : [N] booleans, [n] ids, or None
            Items that may be found, such as those of a tenant or in stock: a mask in the order of
            ``ids``, or their ids. The search among them is exact, whatever the engine is; their
            labels alone vote. If fewer than k are allowed, -1 or "" stands behind them. Such
            queries do not count towards an ``UnfamiliarQueriesWarning``. None, the default: all
            items.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError
            For a k above the number of items, and ids that are not one for each row; for a mask of
            another length or of numbers, ids that are not there, and a filter that leaves no item.

        Warns
        -----
        StaleCalibrationWarning
            If the index has changed by more than a tenth since it was calibrated, or if it was
            calibrated with single rows and is asked with several views, or the other way round.
        UnreachableAlphaWarning
            If too few calibration queries have a match for any query to be unknown at ``alpha``.
        UnfamiliarQueriesWarning
            If more queries are unknown than chance explains, in this call or, once for each excess,
            over several: they come from another encoder, or from classes that were not expected.
        """
        self = self._now()
        check_share("alpha", alpha)
        k = check_count("k", k)
        if k > len(self):
            raise InputError(f"k={k}: the index has {len(self)} items. Pass k={len(self)} or less.")
        allowed = None if among is None else rows_among(self.items, among)
        encoded, query_ids = self._encoded("queries", queries, of, progress=progress)
        found = None if allowed is None else search_among(self.engine.vectors, allowed)
        hits = self._nearest(encoded, self._depth(k), found)
        assessment, among_some = None, None
        if allowed is not None:
            among_some = SearchedAmong(len(allowed), len(self))
        if self.calibration is not None:
            _warn_if_of_other_views(self.calibration, of)
            if among_some is not None:
                among_some = replace(among_some, told=self.calibration.told_among)
            assessment = self._fresh(self.calibration).assess(hits)
            _warn_if_unreachable(self.calibration, alpha)
            if allowed is None:
                self.calibration.warn_if_unfamiliar(assessment.p_value, alpha)
        template = encoded.mean.new_empty(0)
        result = SearchResult.of(
            hits,
            self.items.ids,
            self.items.labels,
            assessment,
            k,
            alpha,
            template,
            self.change,
            among_some,
            self.items.classes,
        )
        return result if query_ids is None else replace(result, query_ids=query_ids)

    def query_vectors(
        self, queries: Any, *, of: Any = None, progress: bool = False
    ) -> Float[Tensor, "Q d"]:
        """Return the vectors by which this index ranks, for another engine.

        Their Euclidean distances to ``index.engine.vectors`` are those by which ``search`` finds;
        where embeddings are directions, vectors have length 1. ``embedder.export(index=)`` writes
        a graph that computes them.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q inputs of the model, as for ``search``.
        of : [n] whole numbers or strings, or None
            Id of the thing that each row is a view of, as for ``search``. None, the default: each
            row is a query.
        progress : bool
            Show a progress bar. Default: False.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
        >>> index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, rank_by="predictive")
        >>> apart = torch.cdist(index.query_vectors(x[:3] + 0.1), index.engine.vectors)
        >>> apart.argmin(1).tolist() == index.search(x[:3] + 0.1, k=1).positions[:, 0].tolist()
        True
        """
        self = self._now()
        encoded, _ = self._encoded("queries", queries, of, progress=progress)
        return self.ranking.query_vectors(encoded)

    def ask(
        self,
        queries: Any,
        rule: Rule | None = None,
        *,
        probability: float | None = None,
        of: Any = None,
        among: Any = None,
        progress: bool = False,
    ) -> Answers:
        """Answer each query with a label, or abstain.

        All voting neighbours decide, not the nearest one alone. "Another label, or none of these"
        is one of the answers that share the probability. It is ``rule(index.search(queries))``.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q inputs of the model, as for ``search``.
        rule : Rule or None
            Rule that decides which queries are answered, from ``guarantee``,
            ``guarantee_by_class`` or ``guarantee_by_level``; of a guard, ``guard.rule``. None, the
            default: ``probability`` decides, which guarantees nothing, also for the index of a
            guard.
        probability : float in [0, 1] or None
            Smallest probability of an answer, in the place of a rule; the index then abstains from
            unknown queries, too (``Rule.at(0.5, alpha=None)`` answers them). None, the default:
            0.5, more probable than not, if there is no rule.
        of : [n] whole numbers or strings, or None
            Id of the thing that each of n rows is a view of, such as the track of a frame or the
            listing of a photograph: the views of one id are one query, in the order of their first
            rows. None, the default: each row is a query.
        among : [N] booleans, [n] ids, or None
            Items that may be found, as for ``search``. A rule was tested with the whole gallery:
            ``Answers.among`` says so. None, the default: all items.
        progress : bool
            Show a progress bar. Default: False.

        Returns
        -------
        Answers
            For each query a label, or None if it abstains; the probability of the label; and the
            reason for abstaining. An index that was calibrated with ``matches`` answers with the
            label of the nearest item, or with its id where items have no labels.

        Raises
        ------
        NotFittedError
            Before ``calibrate``; for a rule about labels, if it was given matches.
        InputError
            For a number in the place of a rule, for a rule and a probability, for a probability
            outside [0, 1], and for ``among`` as ``search``.

        Warns
        -----
        StaleCalibrationWarning
            If ``rule`` guarantees a rate, and ``among`` is given.

        Examples
        --------
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> index = LaplaceEmbedder.from_embeddings(x[:100], y[:100]).index(x[100:200], y[100:200])
        >>> _ = index.calibrate(x[200:300], y[200:300])
        >>> index.ask(x[300:], probability=0.9).label[:6].tolist()
        [None, None, 2, 3, 0, None]
        """
        about = self._calibrated().decides_about
        made = _asked_rule(rule, probability, about)
        alpha = 0.05 if made.alpha is None else made.alpha
        return made(self.search(queries, 1, of=of, alpha=alpha, among=among, progress=progress))

    @named_keywords
    def guarantee(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        fmr: float | None = None,
        fpir: float | None = None,
        confidence: float = 0.95,
        of: str | None = None,
        alpha: float | None = 0.05,
        open_set_fraction: Fraction | None = None,
    ) -> Rule:
        """Return the rule that answers most and keeps a rate; see ``Calibration.guarantee``.

        It is a guarantee of the gallery that was calibrated; once items were added or removed, the
        rule says what it still covers.

        Parameters
        ----------
        precision : float in (0, 1) or None
            Smallest share of the answers that are right. Pass one of the four rates; None, the
            default, for the others.
        recall : float in (0, 1) or None
            Smallest share of the right answers that are given. None, the default: another rate.
        fmr : float in (0, 1) or None
            Largest false match rate: share of the pairs of a query and one of its k neighbours that
            are no match and are accepted. None, the default: another rate.
        fpir : float in (0, 1) or None
            Largest false positive identification rate: share of the queries without a match in the
            index that are answered. None, the default: another rate.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which the rate is kept. Default: 0.95.
        of : "match" | "label" | "hits" or None
            Answer that is right or wrong: the nearest neighbour, the label that the index answers
            with, or, for a precision, each of all "hits" that are passed on (``Rule.passed``).
            None, the default: the label if labels calibrated the index, but the neighbour for
            ``fmr``.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.
        open_set_fraction : float in (0, 1), OpenSetFraction or None
            Share of open-set queries for which a precision is to hold. None, the default: the share
            among the calibration queries.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        InputError
            If it cannot be guaranteed, with what would do.
        """
        rule = self._calibrated().guarantee(
            precision=precision,
            recall=recall,
            fmr=fmr,
            fpir=fpir,
            confidence=confidence,
            of=of,
            alpha=alpha,
            open_set_fraction=open_set_fraction,
        )
        return rule.after(self.change)

    def guarantee_by_class(
        self, precision: float, *, confidence: float = 0.95, alpha: float | None = 0.05
    ) -> ClassRule:
        """Return the rule that keeps a precision of each class.

        See ``Calibration.guarantee_by_class``.

        Parameters
        ----------
        precision : float in (0, 1)
            Smallest share of the answers with each label that are right.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it holds for all classes at once.
            Default: 0.95.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, and if no labels calibrated the index.
        InputError
            If it can be guaranteed of no class, with the queries that each would need.
        """
        rule = self._calibrated().guarantee_by_class(precision, confidence=confidence, alpha=alpha)
        return rule.after(self.change)

    def guarantee_by_level(
        self,
        precision: float,
        coarser: Any,
        *,
        confidence: float = 0.95,
        alpha: float | None = 0.05,
    ) -> LevelRule:
        """Return the rule that answers with a coarser group where the label is not sure enough.

        See ``Calibration.guarantee_by_level``.

        Parameters
        ----------
        precision : float in (0, 1)
            Smallest share of the answers of each level that are right.
        coarser : mapping of label to group, groups of the items [N], or a list of levels
            Group of each label at each coarser level, from fine to coarse.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it holds for all levels at once.
            Default: 0.95.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, and if no labels calibrated the index.
        InputError
            If it can be guaranteed of no level; for a label without a group or in two groups, and
            levels that are not nested, from fine to coarse.

        Warns
        -----
        LaplaceMetricWarning
            For a level with one group of everything.

        Examples
        --------
        >>> import numpy as np
        >>> from laplace_metric import Guard
        >>> g = np.random.default_rng(0)
        >>> y = g.integers(0, 4, 1000)  # 0 and 1 overlap, and so do 2 and 3
        >>> x = np.stack([9 * (y // 2), 2 * (y % 2)], 1) + g.normal(size=(1000, 2))
        >>> index = Guard(x[:600], y[:600]).index
        >>> rule = index.guarantee_by_level(0.9, {0: "left", 1: "left", 2: "right", 3: "right"})
        >>> answers = index.ask([[1.0, -1.0], [0.0, 1.0], [9.0, 1.0], [9.0, 3.0]], rule)
        >>> answers.label.tolist(), answers.level.tolist()
        ([0, 'left', 'right', 3], [0, 1, 1, 0])
        """
        self = self._now()
        levels = self._levels(coarser)
        rule = self._calibrated().guarantee_by_level(
            precision, levels, confidence=confidence, alpha=alpha
        )
        return rule.after(self.change)

    def _levels(self, coarser: Any) -> Levels:
        """Return checked levels of the labels that calibrated the index."""
        classes = self._calibrated().held_out_labels().classes.tolist()
        return Levels.read(coarser, classes, None if self.labels is None else self.labels.tolist())

    def add(
        self, gallery: Any, labels: Any = None, ids: Any = None, *, progress: bool = False
    ) -> None:
        """Add items behind the others; O(N) a call, so add many at once.

        A search of yours must find them already (``searched_by``); a FAISS index that ``Guard``
        wraps is given them, unless it has them.

        Parameters
        ----------
        gallery : inputs (an array, a list of texts, a mapping) or a loader of batches
            New items, as for ``LaplaceEmbedder.index``.
        labels : [n] whole numbers or strings, or None
            Class of each new item; needed if the items of the index have labels. None, the default:
            none, unless the loader yields them.
        ids : [n] whole numbers or strings, or None
            Name of each new item, which no other item has. None, the default: numbers go on.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        InputError, LabelError
            For ids that are there already, labels of another kind, and a search of yours that
            does not find them; nothing is added then.

        Warns
        -----
        DependentQueriesWarning
            If more than a hundredth of the new items are copies of others, new or old.
        """
        inputs = self.encoder.read("gallery", gallery, labels)
        inputs.check_columns(ids=ids)
        encoded, batch_labels = self.encoder.all(inputs, progress=progress)
        with self._changing:
            next_id = self._state.next_id
            new = Items.of(encoded, batch_labels, inputs.labels, ids, next_id, self.items.classes)
            if not new.ids.is_text:
                next_id = max(next_id, int(new.ids.values.max()) + 1)
            known, together = self.items.classes, self.items.joined(new)
            self._replace(together, None, len(new), next_id)
        if new.labels is not None:
            warn_of_near_names(new.labels, known, "They are new classes now.")
        stands = np.zeros(len(together), bool)
        stands[first_rows(equal_vectors(together.encoded.mean))] = True
        warn_of_copies(
            int((~stands[-len(new) :]).sum()),
            len(new),
            "new items",
            "Each copy votes for its label once more: leave copies out, or take them out again, "
            "remove(ids).",
        )

    def searched_by(self, find: Callable[..., Any]) -> Index:
        """Return this index with a search of yours in the place of its engine.

        Distances are its own, so that nothing depends on the scores of the search.

        Parameters
        ----------
        find : function
            Search that takes mean embeddings of queries [Q, d] as a NumPy array, and k. It returns
            for each query a list of the ids of the nearest items, up to k; or an array [Q, k], with
            -1 or "" where it found fewer.

        Raises
        ------
        InputError
            For an index that ranks by anything but the distance of the means, or a search that
            does not find the items.

        Warns
        -----
        StaleCalibrationWarning
            If it finds fewer of the nearest items than the search that calibrated the index.
        """
        if self.rank_by != "mean":
            raise InputError(
                f"rank_by={self.rank_by!r}: a search of yours ranks by the means. Build the index "
                "with rank_by='mean'."
            )
        vectors = self.items.encoded.mean
        engine = ForeignEngine(vectors, self.items.ids, find)
        first, engine.recall = shares_found(engine, FlatEngine(vectors, Flat()), vectors)
        if first < LEAST_FOUND:
            by = "arccos" if self.encoder.spherical else "euclidean"
            raise InputError(
                f"search finds {first:.0%} of the items that it is asked for: it must "
                "return their ids= (without ids=: rows, in the order in which they are given), "
                f"and compare them by distance={by!r}."
            )
        before = self._found()
        if self.calibration is not None and engine.recall < before - WORSE:
            warnings.warn(
                f"search finds {engine.recall:.0%} of the {NEAREST} nearest of stored vectors, and "
                f"the search that calibrated this index {before:.0%}: probabilities, guarantees "
                "and sets are of that search. Pass the same, or calibrate again.",
                StaleCalibrationWarning,
                stacklevel=callers_line(),
            )
        return self._with(engine)

    def _found(self) -> float:
        """Share of the nearest of stored vectors that the present search finds; NaN: not known."""
        if isinstance(self.engine, ForeignEngine):
            return self.engine.recall
        exact = 1.0 if isinstance(self.engine, FlatEngine) else math.nan
        return exact if self._state.found is None else self._state.found

    def _keep_rows(self, mean: Float[Tensor, "N Z"], inputs: Float[Tensor, "N A"]) -> None:
        """Keep other tensors of means and ``basis_inputs``, and search in these means."""
        engine, encoded = self.engine, self.items.encoded
        if isinstance(engine, FlatEngine) and engine.vectors is encoded.mean:
            engine = FlatEngine(mean, engine.kind)
        items = replace(self.items, encoded=replace(encoded, mean=mean, basis_inputs=inputs))
        self._state = replace(self._state, items=items, engine=engine)

    def _with(self, engine: Engine) -> Index:
        other = self._now()
        other._state = replace(self._state, engine=engine)
        return other

    def remove(self, ids: Any) -> None:
        """Remove items by their ids; O(N) a call.

        A search of yours must have lost them already (``searched_by``); a flat FAISS index that
        ``Guard`` wraps loses them here, unless it has.

        Parameters
        ----------
        ids : [n] whole numbers or strings
            Ids of the items.

        Raises
        ------
        InputError
            For ids that are not there, which it names; if nothing would be left; for a search of
            yours that still finds them, and for a FAISS index that cannot give them up. Nothing is
            removed then.
        """
        with self._changing:
            stays = torch.ones(len(self), dtype=torch.bool)
            stays[self.items.rows_of(ids)] = False
            if not bool(stays.any()):
                raise InputError(
                    "ids name every item, and an index cannot be empty: leave one, or make another "
                    "index."
                )
            rows = stays.nonzero().flatten()
            kept = self.items.take(rows)
            self._replace(kept, rows, len(self) - len(kept), self._state.next_id)

    def calibrate(
        self,
        queries: Any,
        labels: Any = None,
        k: int = 10,
        *,
        matches: Matches | None = None,
        depth: int = 50,
        portable: bool = False,
        open_set_fraction: float = 0.0,
        cross_fit: int | None = None,
        groups: Any = None,
        of: Any = None,
        seed: Seed = None,
        progress: bool = False,
    ) -> Calibration:
        """Fit match probabilities to held-out queries; stored as ``calibration``.

        The calibration queries should be like later ones: in neither training nor the fit, and not
        items of the index. If later queries are of classes that were not in training, so should
        these be. The share of queries without a match should be that of later ones; else pass
        ``open_set_fraction``. A query tests a probability that was not fitted to it: see
        ``cross_fit``. Copies count once: of equal queries one is drawn at random, and a guarantee
        is one of distinct queries.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q calibration queries, at least 20. A loader may yield ``(inputs, labels)``.
        labels : [Q] whole numbers or strings, or None
            Label of each query, as the index names it; a query whose label no item has is an
            open-set query. None, the default: the loader yields them, or ``matches`` are given.
        k : int
            Number of neighbours of each query to which the match probability is fitted. Pass the k
            of later searches: a search for more extrapolates to deeper ranks. Default: 10.
        matches : Q lists of ids, or None
            Relevance judgements in the place of labels: the ids of all items that are a match of
            each query, an empty list if no item is. ``SearchResult.label`` is then None. None, the
            default: labels decide.
        depth : int
            Number of neighbours that retrieval sets may choose from. Raise it if the matches of
            many queries are farther away. Default: 50.
        portable : bool
            Leave out what only this index knows, such as the deviation of each distance, so that
            ``Calibration.apply`` returns the same for the hits of another engine, and
            ``Calibration.export`` can write it. The other engine holds the means, so that the index
            must not rank by "predictive"; with "mean" both return the same order. Default: False.
        open_set_fraction : float in [0, 1)
            Share of later queries that have no match in the index. If fewer calibration queries
            have none, others are drawn, and find all items except their matches. These are as like
            the index as its own classes are like each other, and guarantees hold for such queries.
            With few classes, a new one may be more like one of them than they are. Default: 0, all
            queries as they are.
        cross_fit : int or None
            Number of parts of the queries, each of which tests a fit to the others. 0: the
            probability is fitted to one half and tested by the other. Guarantees are then proven
            with ``alpha=None``; the rule that finds unknown queries is simulated. With 5, much more
            can be guaranteed from few queries, but by simulation (``Calibration.cross_fitted``).
            Between 2 and 20 parts are possible. None, the default: 5 for fewer than 1,000 queries,
            else 0.
        groups : [Q] numbers or strings, or None
            Group of each query, such as the video of a frame: queries of a group depend on each
            other, and guarantees then count groups. No group fits and tests at once. None, the
            default: queries are independent.
        of : [n] whole numbers or strings, or None
            Id of the thing that each of n rows is a view of, as for ``search``: each id is one
            query, and a guarantee is one of such queries. ``labels`` and ``groups`` are those of
            the rows. None, the default: each row is a query.
        seed : torch.Generator, int or None
            Generator or seed that draws open-set queries and splits the queries. None, the default:
            the seed 0, the same split in every run.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        LabelError
            For an index or queries without labels if there are no matches; and if both are given.
        InputError
            For too few queries, another number of lists than of queries, or ids of no item. For
            ``portable=True`` if distances are not those of the means. For views of one id with two
            labels or groups, and ``of`` next to ``matches``.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior or are copies
            of others, or more than a fiftieth are near-copies, such as frames of one video.
        FewQueriesWarning
            If fewer than five of the queries that fit have a match among their neighbours, or fewer
            than five anything else.
        """
        k, depth = check_count("k", k), check_count("depth", depth)
        check_fraction("open_set_fraction", open_set_fraction)
        now = self._now()
        if portable:
            _check_portable(now.ranking)
        deepest = max(k, depth, VOTES)
        if open_set_fraction:  # else the generator is left to the split
            seed = as_generator(0 if seed is None else seed)
        queries = now.query_encoder.read("queries", queries)
        queries.check_columns(groups=groups, of=of)
        # Where no class model is fitted, hits must not carry the odds of an earlier one.
        now._state = replace(now._state, class_model=None)
        if not portable and matches is None:
            now.learn_classes()
        labelled = now.labelled_hits(
            queries,
            labels,
            deepest,
            matches=matches,
            open_set_fraction=open_set_fraction,
            seed=seed if open_set_fraction else None,
            grouped=groups is not None,
            of=of,
            progress=progress,
        )
        if of is not None and groups is not None:
            groups = Views.read(of, len(of)).one_each("groups", groups)
        all_drawn = round(open_set_fraction * len(labelled)) == len(labelled)
        if matches is None and not labelled.known.any() and not all_drawn:
            _refuse_foreign(labels, now.items.classes, len(labelled))
        return self.learn(
            labelled,
            k,
            seed,
            portable=portable,
            cross_fit=cross_fit,
            groups=groups,
            of_views=of is not None,
            since=now,
        )

    def learn(
        self,
        labelled: LabelledHits,
        k: int = 10,
        seed: Seed = None,
        *,
        portable: bool = False,
        own_items: bool = False,
        cross_fit: int | None = None,
        groups: Any = None,
        of_views: bool = False,
        since: Index | None = None,
    ) -> Calibration:
        """Calibrate from the hits of queries in this index or in one like it; see ``calibrate``.

        Parameters
        ----------
        labelled : LabelledHits
            Result of ``labelled_hits``, with the 20 nearest neighbours or more: retrieval sets can
            choose from as many. Call ``learn_classes`` before, or there is no class model.
        k : int
            Number of neighbours to which the match probability is fitted. Default: 10.
        seed : torch.Generator, int or None
            Generator or seed that splits the queries. None, the default: the seed 0.
        portable : bool
            Leave out what only this index knows, as for ``calibrate``. Default: False.
        own_items : bool
            True if the queries are items of this index, each searched among others. Guarantees are
            then simulated (``Calibration.own_items``). Default: False.
        cross_fit : int or None
            Number of parts of the queries, as for ``calibrate``. None, the default: 5 for fewer
            than 1,000 queries, else 0.
        groups : [Q] numbers or strings, or None
            Group of each query, as for ``calibrate``. None, the default: queries are independent.
        of_views : bool
            True if each query was several views of one thing. Default: False.
        since : Index or None
            The index as it was when it was searched: later changes count towards a stale
            calibration. None, the default: the index as it is.

        Raises
        ------
        InputError
            For too few queries, or for ``portable=True`` if distances are not those of the means.
        """
        k, now = check_count("k", k), self._now() if since is None else since
        if portable:
            _check_portable(now.ranking)
        source = as_generator(0 if seed is None else seed)
        assert source is not None
        order = torch.randperm(len(labelled), generator=source, device=source.device)
        calibration = calibrated(
            labelled,
            min(k, len(now)),
            len(now),
            order.cpu().numpy(),
            portable=portable,
            own_items=own_items,
            covers_fit=_covers_fit(now),
            cross_fit=cross_fit,
            group=None if groups is None else read_groups(groups, len(labelled), told=own_items),
        )
        calibration = replace(calibration, of_views=of_views)
        _LOG.info("calibrated %s", calibration._sentence())
        codes = now.items.label_codes
        sizes = None if codes is None else np.bincount(codes.cpu().numpy()).astype(np.float64)
        with self._changing:  # what changed meanwhile is news to the calibration
            changes = self.changes - now.changes
            self._state = replace(
                self._state,
                calibration=calibration,
                class_model=now.class_model if calibration.asks_classes else None,
                changes=changes,
                found=None,  # that of the search of a calibration that is over
                class_sizes=sizes,
            )
        return calibration

    def evaluate(
        self,
        queries: Any,
        labels: Any = None,
        ood: Any = None,
        *,
        matches: Matches | None = None,
        depth: int | None = None,
        of: Any = None,
        progress: bool = False,
    ) -> IndexReport:
        """Evaluate the answers, and their probabilities if it is calibrated, on labelled queries.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q test queries: neither items of the index, nor of the fit, nor calibration queries.
        labels : [Q] whole numbers or strings, or None
            Label of each query, as the index names it. None, the default: the loader yields them,
            or ``matches`` are given.
        ood : inputs or loader, or None
            Out-of-distribution inputs, which have no match in the index. None, the default: the
            report has no OOD numbers.
        matches : Q lists of ids, or None
            Ids of all items that are a match of each query, in the place of labels. None, the
            default: labels decide.
        depth : int or None
            Number of neighbours of each query, at least 20. None, the default: as many as in the
            calibration, or 50 without one.
        of : [n] whole numbers or strings, or None
            Id of the thing that each row of ``queries`` is a view of, as for ``search``; ``labels``
            are those of the rows, and ``ood`` are single ones. None, the default: each row is a
            query.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        LabelError, InputError
            As ``calibrate``.

        Warns
        -----
        FittedQueriesWarning
            If more than a hundredth of the queries were in the fit of the posterior, or more than
            a fiftieth are near-copies of others, such as frames of one video.
        StaleCalibrationWarning
            If the index has changed by more than a tenth since it was calibrated.
        """
        self = self._now()
        calibration = None if self.calibration is None else self._fresh(self.calibration)
        if depth is None:
            depth = DEPTH if calibration is None else calibration.depth
        depth = max(check_count("depth", depth), VOTES)
        if calibration is not None:
            _warn_if_of_other_views(calibration, of)
        labelled = self.labelled_hits(
            queries, labels, depth, matches=matches, of=of, progress=progress
        )
        assert labelled.same is not None
        n, distinct = len(labelled), len(np.unique(labelled.same))
        warn_of_copies(
            n - distinct,
            n,
            "queries",
            "Each is counted here, so that intervals are too narrow, and a guarantee, which is "
            "one of distinct queries, may look broken: pass one of each.",
        )
        ood_hits = None
        if ood is not None:
            encoded, _ = self._encoded("ood", ood, progress=progress)
            ood_hits = self._nearest(encoded, min(depth, len(self)))
        return evaluated(labelled, calibration, ood_hits, self.items.encoded.mean.new_empty(0))

    def evaluate_answers(
        self,
        queries: Any,
        labels: Any = None,
        rule: Rule | None = None,
        *,
        of: Any = None,
        progress: bool = False,
    ) -> AnswerReport:
        """Answer labelled queries by a rule, and report what became of them.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q test queries, as for ``evaluate``.
        labels : [Q] whole numbers or strings, or None
            Label of each query. None, the default: the loader yields them.
        rule : Rule or None
            Rule about labels, as for ``ask``. None, the default: a probability of 0.5 or more.
        of : [n] whole numbers or strings, or None
            Id of the thing that each row is a view of, as for ``evaluate``. None, the default: each
            row is a query.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``calibrate``; if it was given matches.
        LabelError, InputError
            As ``evaluate``.

        Warns
        -----
        FittedQueriesWarning, StaleCalibrationWarning
            As ``evaluate``.
        """
        self = self._now()
        calibration = self._fresh(self._calibrated())
        calibration.held_out_labels()  # says why not, where matches calibrated it
        made = _asked_rule(rule, None, "label")
        depth = max(calibration.depth, VOTES)
        _warn_if_of_other_views(calibration, of)
        labelled = self.labelled_hits(queries, labels, depth, of=of, progress=progress)
        assessment = calibration.assess(labelled.hits)
        found = SearchResult.of(
            labelled.hits,
            self.items.ids,
            self.items.labels,
            assessment,
            1,
            0.05 if made.alpha is None else made.alpha,
            self.items.encoded.mean.new_empty(0),
            self.change,
            classes=self.items.classes,
        )
        answers, codes = made(found), labelled.codes
        assert found.label is not None
        assert labelled.classes is not None
        assert codes is not None
        truth = np.full(len(codes), None, dtype=object)
        truth[codes >= 0] = labelled.classes.astype(object)[codes[codes >= 0]]
        label, level, truths = found.label.astype(object), None, (truth,)
        if isinstance(made, LevelRule):
            label, level = made.likeliest(found)
            of = made.levels
            truths = tuple(of.names(truth.tolist(), at) for at in range(len(of)))
            truth = np.choose(level, truths)
        return AnswerReport(
            label, truth, answers.probability, answers.reason, made.target, level, truths
        )

    def labelled_hits(
        self,
        queries: Any,
        labels: Any = None,
        k: int = 10,
        *,
        matches: Matches | None = None,
        open_set_fraction: float = 0.0,
        seed: Seed = None,
        grouped: bool = False,
        of: Any = None,
        progress: bool = False,
    ) -> LabelledHits:
        """Return the k nearest items of queries, and which of them are a match.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q queries. A loader may yield ``(inputs, labels)``.
        labels : [Q] whole numbers or strings, or None
            Label of each query, as the index names it. None, the default: the loader yields them,
            or ``matches`` are given.
        k : int
            Number of items for each query; at most all are returned. Default: 10.
        matches : Q lists of ids, or None
            Ids of all items that are a match of each query, an empty list if no item is. None, the
            default: labels decide.
        open_set_fraction : float in [0, 1)
            Share of queries without a match. If fewer have none, others are drawn, and find all
            items except their matches. Default: 0.
        seed : torch.Generator, int or None
            Generator or seed that draws these queries. None, the default: the seed 0.
        grouped : bool
            True if near-copies among the queries are in groups that are known, and need no warning.
            Default: False.
        of : [n] whole numbers or strings, or None
            Id of the thing that each row is a view of, as for ``search``; ``labels`` are those of
            the rows. None, the default: each row is a query.
        progress : bool
            Show a progress bar. Default: False.

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
            If more than a hundredth of the queries were in the fit of the posterior, or more than
            a fiftieth are near-copies of others, such as frames of one video.
        """
        self, k = self._now(), check_count("k", k)
        inputs = self.query_encoder.read("queries", queries, labels)
        inputs.check_columns(matches=matches, of=of)
        if of is not None and matches is not None:
            raise InputError("of= and matches=: views of one thing are judged by labels, labels=.")
        read = relevance_of(self.items, inputs.labels, matches)  # before the long part
        known_rows, rows = self.query_encoder.fitted_rows, list[Fingerprints]()
        encoded, batch_labels = self.query_encoder.all(inputs, progress=progress, rows=rows)
        if rows:
            warn_if_fitted(known_rows, np.concatenate(rows))
        if of is not None:
            views = Views.read(of, len(encoded))
            encoded = self._pooled(encoded, views)
            given = joined_labels(batch_labels) if inputs.labels is None else inputs.labels
            own = None if given is None else views.one_each("labels", given)
            read, batch_labels = relevance_of(self.items, own, matches), []
        relevance, depth = read(encoded, batch_labels), min(k, len(self))
        same = equal_vectors(encoded.mean)
        if not grouped:
            one = torch.from_numpy(first_rows(same))
            _warn_of_copies(self.items, encoded.mean, relevance.codes, one)
        found = replace(relevance(self._nearest(encoded, depth)), same=same)
        rows_without = _drawn_open_set(relevance.known, same, open_set_fraction, seed)
        if open_set_fraction:
            found = replace(found, simulated=np.zeros(len(found), dtype=bool))
        if not len(rows_without):
            return found
        others = relevance.others(self._exact(), rows_without)
        asked = encoded.take(rows_without.to(encoded.mean.device))
        own = None if relevance.codes is None else relevance.codes[rows_without].numpy()
        simulated = relevance.open_set(self._nearest(asked, depth, others, own=own))
        simulated = replace(simulated, same=same[rows_without.numpy()])
        order = torch.arange(len(found))
        order[rows_without] = len(found) + torch.arange(len(rows_without))
        joined = LabelledHits.concatenate([found, simulated])
        return joined.take(order.numpy())

    def retrieval_sets(
        self, queries: Any, alpha: float = 0.1, *, progress: bool = False
    ) -> RetrievalSets:
        """Return sets that hold a true match with probability 1 - alpha or more, if there is one.

        Split conformal prediction, valid if these queries are exchangeable with the held-out ones:
        a set holds the likeliest first matches. It is empty if no item looks like a match.

        Parameters
        ----------
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q inputs of the model, as for ``search``.
        alpha : float in (0, 1)
            Share of the queries with a match whose set may hold none of their matches. A smaller
            one makes larger sets. Default: 0.1.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        InputError
            If fewer than ``1 / alpha - 1`` held-out queries have a match, or if more than a share
            ``alpha`` of them has none among the ``depth`` nearest items.
        """
        self = self._now()
        calibration = self._fresh(self._calibrated())
        hits = self._deep_hits(queries, calibration, progress=progress)
        members = calibration.members(calibration.assess(hits).logit, alpha)
        device = self.items.encoded.mean.device
        positions, held = (torch.from_numpy(x).to(device) for x in (hits.positions, members))
        return RetrievalSets(positions, held, self.items.ids)

    def label_sets(
        self,
        queries: Any,
        alpha: float = 0.1,
        *,
        by_class: bool = True,
        confidence: float | None = None,
        progress: bool = False,
    ) -> LabelSets:
        """Return sets that hold the query's label with probability 1 - alpha or more, per class.

        Split conformal prediction with the probabilities of the neighbours' labels
        (``calibration._label_sets`` has the equations). It is valid if these queries are
        exchangeable with the held-out ones, and guarantees nothing for a query whose label no item
        has. The coverage that is guaranteed, on average over held-out sets:

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
        queries : inputs (an array, a list of texts, a mapping) or a loader of batches
            Q inputs of the model, as for ``search``.
        alpha : float in (0, 1)
            Share of the queries of a class whose set may miss their label. A smaller one makes
            larger sets. Default: 0.1.
        by_class : bool
            Compute a level for each class; False: one for all labels, which needs fewer calibration
            queries. Default: True.
        confidence : float in (0, 1) or None
            Probability, over held-out sets, that a class is covered by 1 - alpha or more. None, the
            default: coverage on average over held-out sets.
        progress : bool
            Show a progress bar. Default: False.

        Raises
        ------
        NotFittedError
            Before ``calibrate``, or if it was given matches.
        InputError
            For an alpha or a confidence outside (0, 1); for a confidence where groups calibrated.

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
        >>> sets[2], sets.sizes.shape, int(sets.everywhere.sum())
        (array([2]), torch.Size([100]), 0)
        """
        self = self._now()
        calibration = self._fresh(self._calibrated())
        held_out = calibration.held_out_labels()
        if confidence is not None and len(calibration.group):
            raise InputError(
                "confidence= of label sets counts independent queries: calibrate on one of each "
                "group, without groups=, or pass confidence=None."
            )
        hits = self._deep_hits(queries, calibration, progress=progress)
        assert self.items.classes is not None  # labels calibrated it
        levels = held_out.levels(alpha, by_class=by_class, confidence=confidence)
        warn_if_everything(levels, alpha)
        return LabelSets.of(hits, self.items.classes, calibration, levels)

    def suspicious_labels(self, most: int = 100) -> LabelReview:
        """Return the items whose label looks most wrong to their neighbours; no model runs.

        Each item is searched among all others, and assessed by the calibration. A wrong label that
        all neighbours share is not found; a label that no other item has is left out.

        Parameters
        ----------
        most : int
            Largest number of items to return, at least 1. Default: 100.

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

    def plot_threshold(
        self, precision: float | None = 0.9, *, of: str | None = None, alpha: float | None = 0.05
    ) -> Figure:
        """Plot precision and share of answers at each threshold, on held-out queries.

        Parameters
        ----------
        precision : float in (0, 1) or None
            Precision that is marked, with the threshold that guarantees it if there is one. None:
            no mark. Default: 0.9.
        of : "match" | "label" or None
            Answer that is right or wrong, as for ``guarantee``. None, the default: what the index
            answers with.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        InputError
            For a precision outside (0, 1).
        NotFittedError
            Before ``calibrate``.
        MissingPackageError
            Without matplotlib.
        """
        from laplace_metric.plots import threshold_plot

        if precision is not None:
            check_share("precision", precision)
        calibration, marked = self._calibrated(), None
        queries = calibration.queries(of, alpha)
        if precision is not None:
            with suppress(InputError):
                marked = calibration.guarantee(precision=precision, of=of, alpha=alpha).value
        return threshold_plot(
            queries.probability[:, 0],
            queries.relevant[:, 0] == 1,
            target=precision,
            threshold=marked,
            abstained=queries.abstained,
        )

    def plot_reliability(self, *, of: str | None = None) -> Figure:
        """Plot the probability against the share that is right, on held-out queries.

        Parameters
        ----------
        of : "match" | "label" or None
            Probability that is plotted: that the nearest item is a match, or that the label is
            right. None, the default: that of what the index answers with.

        Raises
        ------
        NotFittedError
            Before ``calibrate``.
        MissingPackageError
            Without matplotlib.
        """
        from laplace_metric.plots import reliability_plot

        calibration = self._calibrated()
        about = calibration.decides_about if of is None else of
        measured = expected_calibration_error(*calibration.queries(about, None).answers())
        return reliability_plot({f"{about} probability": measured})

    def save(self, path: str | Path) -> None:
        """Write everything but the embedder to one file.

        Parameters
        ----------
        path : path
            Name of a safetensors file, such as "index.safetensors", which is replaced in one step.

        Raises
        ------
        InputError
            If ``path`` is a folder.
        WriteError
            If it cannot be written; an old file is kept.
        """
        write(as_path("path", path), self._part())

    def _part(self) -> Part:
        """Return the index as a part of a file."""
        return storage.index_part(self._state, self.encoder.identity)

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
        path : path
            File of ``save``, of ``Guard.save``, or of the command line.
        embedder : LaplaceEmbedder, LaplaceEnsemble or ImageTextEmbedder
            Embedder that the index was built with, with the same posterior.
        mmap : bool
            Leave embeddings on disk and read what a search touches, for an index that is larger
            than the memory. Items can then be neither added nor removed. Default: False.
        verify : bool or None
            Hash the whole file; False: only its header. None, the default: the whole file unless
            ``mmap``.

        Raises
        ------
        FileFormatError
            If the file is of another program, damaged, or of another posterior.
        WeightsChangedError
            If the model of ``embedder`` no longer has the weights of its fit, in its head or before
            it.
        """
        file = as_path("path", path)
        while True:
            saved = SavedFile(file, mapped=mmap, verify=verify)
            index = cls._of(saved, embedder)
            if not mmap or not saved.replaced():  # FAISS maps the file once more, by its name
                return index

    @classmethod
    def _of(
        cls,
        saved: SavedFile,
        embedder: FittedEmbedder | SearchableEmbedder,
        name: str = storage.INDEX.name,
    ) -> Index:
        """Return an index of an opened file."""
        encoders = encoders_of(embedder)
        state, which = storage.load_index(saved, [items for items, _ in encoders], name)
        items, queries = encoders[which]
        return cls._made_of(items, state, None if queries is items else queries)

    @classmethod
    def _made_of(
        cls, encoder: SearchEncoder, state: IndexState, query_encoder: SearchEncoder | None
    ) -> Index:
        """Return the index whose encoder reads the earlier layer of the ranking."""
        ranking = state.ranking
        layer = ranking.layer if isinstance(ranking, PredictiveRanking) else None
        return cls(encoder.with_layer(layer), state, query_encoder)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise NotFittedError(
                "this index is not calibrated: call index.calibrate(...) first, or build it with "
                "embedder.cross_index(items, labels), which calibrates by the items themselves."
            )
        return self.calibration

    def _deep_hits(self, queries: Any, calibration: Calibration, *, progress: bool) -> SearchHits:
        """Search as deep as the calibration did."""
        _warn_if_of_other_views(calibration, None)
        encoded, _ = self._encoded("queries", queries, progress=progress)
        return self._nearest(encoded, min(calibration.depth, len(self)))

    def _encoded(
        self, name: str, queries: Any, of: Any = None, *, progress: bool
    ) -> tuple[Encoded, np.ndarray[Any, Any] | None]:
        """Read and encode queries; an empty array or list has none. Return their ids, too."""
        if _with_labels(queries):
            raise InputError(
                f"{name} is a {type(queries).__name__} of queries and labels: pass the queries "
                "alone, or both to evaluate(queries, labels)."
            )
        inputs = self.query_encoder.read(name, queries)
        if isinstance(queries, Sized) and not (isinstance(queries, Mapping) or len(queries)):
            return self.items.encoded.take(slice(0)), None
        inputs.check_columns(of=of)
        encoded = self.query_encoder.all(inputs, progress=progress)[0]
        if of is None:
            return encoded, None
        views = Views.read(of, len(encoded))
        return self._pooled(encoded, views), views.ids

    def _pooled(self, encoded: Encoded, views: Views) -> Encoded:
        """Return one row for each thing, by the vectors that rank."""
        v, spherical = self.ranking.query_vectors(encoded), self.encoder.spherical
        if not spherical:
            some = self.engine.vectors[:: -(-len(self) // CENTRED_ON)]
            v = v - some.to(v).mean(0)
        return views.pooled(encoded, v, spherical=spherical)

    def _depth(self, k: int) -> int:
        """Return the number of neighbours that a calibration needs to see the same evidence.

        The labels of ``VOTES`` neighbours vote. Rankings other than "mean" need the whole depth:
        the p-value uses the smallest distance of the means, which need not be that of the first
        hit, and the shortlist of "shared" grows with the depth.
        """
        needed = 0 if self.labels is None else VOTES
        if self.calibration is not None and self.rank_by != "mean":
            needed = self.calibration.depth
        return min(max(k, needed), len(self))

    def _fresh(self, calibration: Calibration) -> Calibration:
        change = self.change
        if change is not None and change.large:
            warnings.warn(
                f"{change.size}: probabilities, guarantees and sets may be off. Calibrate again.",
                StaleCalibrationWarning,
                stacklevel=callers_line(),
            )
        return calibration

    def _exact(self) -> Engine:
        """Return an exact engine: an approximate one finds few items of other classes."""
        if isinstance(self.engine, FlatEngine):
            return self.engine
        return _built_engine.build(self.ranking.item_vectors(self.items.encoded), Flat())

    def _others(self, k: int) -> Iterator[LabelledHits]:
        """Search each item among the others, block by block.

        The class model that assesses an item has not seen it.
        """
        relevance = relevance_of(self.items, self.labels, None)(self.items.encoded, [])
        models: list[ClassModel | None] = [None]
        fold, codes, classes = np.zeros(len(self)), self.items.label_codes, self.items.classes
        if self.class_model is not None and codes is not None and classes is not None:
            rows = inputs_of(self.items.encoded)
            models, fold = cross_fitted(rows, codes, classes, self.class_model.prior)
        for own in torch.arange(len(self)).split(BLOCK):

            def itself(rows: Tensor, part: slice, own: Tensor = own) -> Tensor:
                return rows == own[part, None].to(rows.device)

            search = without_some(self.engine, itself, 1)
            asked = self.items.encoded.take(own.to(self.items.encoded.mean.device))
            asked = asked.to(self.encoder.device)
            found = self._nearest(asked, k, search, models, fold[own.numpy()])
            yield relevance.of_some(found, own)

    def learn_classes(
        self,
        prior_precision: float | None = None,
        temperature: float | None = None,
        width: int | None = None,
    ) -> None:
        """Fit the class model to the items; ``calibrate`` and ``cross_index`` call it.

        Call it before ``labelled_hits`` if you calibrate in two steps, with ``learn``. It does
        nothing if the items have no labels, or if an encoder of another kind embeds the queries.
        A calibration is of its class model: with another prior or temperature it is over.

        Parameters
        ----------
        prior_precision : float >= 0 or None
            Precision l of the Gaussian prior over the weights; 0: linear discriminant analysis.
            None, the default: the candidate that is best on a held-out fifth of the items.
        temperature : float > 0 or None
            Number T that divides the moderated log probabilities; linear discriminant analysis has
            none. None, the default: the one that is best on a held-out fifth of the items.
        width : int or None
            Numbers of a row, where the head's inputs are coordinates of a subspace that holds all
            of them. None, the default: they are those of the whole space.
        """
        items = self.items  # read once: another thread may replace them
        codes, classes = items.label_codes, items.classes
        if codes is None or classes is None or self.query_encoder is not self.encoder:
            return
        rows = inputs_of(items.encoded)
        if width is not None and items.encoded.earlier is not None:
            width += items.encoded.earlier.shape[1]
        model = ClassModel.fit(rows, codes, classes, prior_precision, temperature, width)
        with self._changing:
            if self.items is items:  # a model of items that changed meanwhile is stale
                before, calibration = self.class_model, self.calibration
                if before is not None and (model is None or model.prior != before.prior):
                    calibration = None
                self._state = replace(self._state, class_model=model, calibration=calibration)

    def _nearest(
        self,
        queries: Encoded,
        k: int,
        search: RowSearch | None = None,
        models: Sequence[ClassModel | None] | None = None,
        which: np.ndarray[Any, Any] | None = None,
        own: np.ndarray[Any, Any] | None = None,
    ) -> SearchHits:
        """Find the nearest items; ``which`` of several class ``models`` assesses each query.

        ``own``: the class that is left out for each simulated open-set query.
        """
        pairs, search = self.encoder.pairs, self.engine.search if search is None else search
        items, stored = self.items.encoded, self.engine.vectors
        hits = nearest(search, queries, items, pairs, k, self.ranking, stored)
        codes = self.items.label_codes
        if codes is None:
            return hits
        labels = np.where(hits.positions < 0, -1, codes.cpu().numpy()[hits.positions.clip(min=0)])
        votes = LabelVotes.of(hits.distance, labels)
        classes = self.items.classes
        models = [self.class_model] if models is None else models
        if classes is None or all(model is None for model in models):
            return replace(hits, votes=votes)
        rows = inputs_of(queries)
        if which is None and models[0] is not None:
            odds = models[0].evidence(rows, labels, classes, own)
            return replace(hits, votes=replace(votes, class_odds=odds))
        odds = np.zeros(labels.shape)
        for number, model in enumerate(models):
            if model is not None:
                at = np.ones(len(labels), bool) if which is None else which == number
                there = torch.from_numpy(at).to(rows.device)
                left_out = None if own is None else own[at]
                odds[at] = model.evidence(rows[there], labels[at], classes, left_out)
        return replace(hits, votes=replace(votes, class_odds=odds))

    def _now(self) -> Index:
        """Return a copy as it is now, which later changes of ``self`` do not reach."""
        return copy.copy(self)

    def _replace(
        self, items: Items, remaining: Tensor | None, n_changes: int, next_id: int
    ) -> None:
        """Replace items and engine; ``remaining`` are rows of the old items, None if some came."""
        if self.engine.mapped:
            raise InputError("this index was loaded with mmap=True: load it without to change it.")
        vectors = self.ranking.item_vectors(items.encoded)
        engine, changes = self.engine, self.changes + n_changes
        if isinstance(engine, ForeignEngine):
            if remaining is None:
                engine = engine.grown(vectors, items.ids)
            else:
                engine = engine.shrunk(vectors, items.ids, remaining)
        else:
            engine = engine.updated(vectors, remaining)
        self._state = replace(
            self._state, items=items, engine=engine, changes=changes, next_id=next_id
        )


def _asked_rule(rule: Any, probability: float | None, about: str) -> Rule:
    """Return the rule of ``Index.ask``, or the one that compares a probability ``about``."""
    if rule is None:
        least = check_real("probability", LIKELIER_THAN_NOT if probability is None else probability)
        if not 0 <= least <= 1:
            raise InputError(f"probability={probability!r}: pass a number in [0, 1].")
        return Rule.at(least, about)
    if not isinstance(rule, Rule):
        refuse_reloaded("rule", rule)
        raise CallError(
            f"rule={rule!r:.40} is no rule. For a guarantee pass "
            "rule=index.guarantee(precision=...), or that of a guard, guard.at(...).rule; for the "
            "smallest probability of an answer, which guarantees nothing, name it: probability=0.5."
        )
    if probability is not None:
        raise InputError(
            f"{shown_argument('probability', probability)} next to a rule: pass one of them."
        )
    return rule


def _with_labels(queries: Any) -> bool:
    """Return whether queries are a pair of arrays, of inputs [Q, ...] and labels [Q]."""
    if not isinstance(queries, (tuple, list)) or len(queries) != 2:
        return False
    inputs, labels = (tuple(getattr(part, "shape", ())) for part in queries)
    return len(inputs) > 1 and labels == inputs[:1]


def _warn_if_of_other_views(calibration: Calibration, of: Any) -> None:
    if calibration.of_views == (of is not None):
        return
    calibrated, asked = ("several views", "single rows")[:: 1 if calibration.of_views else -1]
    how = "calibrate(views, labels, of=ids)" if of is not None else "calibrate(queries, labels)"
    warnings.warn(
        f"this index was calibrated with queries of {calibrated} and is asked with {asked}: "
        f"probabilities and guarantees are of other queries. Call index.{how}.",
        StaleCalibrationWarning,
        stacklevel=callers_line(),
    )


def _warn_if_unreachable(calibration: Calibration, alpha: float) -> None:
    smallest = calibration.smallest_p_value
    if smallest > alpha:
        warnings.warn(
            f"alpha={alpha:g}: with {len(calibration.statistics)} held-out queries that have a "
            f"match no p-value is below {smallest:.3g}, so nothing is unfamiliar. Calibrate "
            f"with {math.ceil(min(1 / alpha - 1, 1e18))} of them, or raise alpha.",
            UnreachableAlphaWarning,
            stacklevel=callers_line(),
        )


def _covers_fit(index: Index) -> bool:
    """Return whether items have as many classes as the fit: what it knows can then be found."""
    fitted, classes = index.encoder.fitted_classes, index.items.classes
    return fitted is not None and classes is not None and len(classes) >= fitted


def _check_portable(ranking: Ranking) -> None:
    """Raise ``InputError`` if distances are none that another engine could know."""
    if ranking.measures:
        raise InputError(
            f"portable=True: this index ranks by {ranking.name!r}, and another engine, which holds "
            "the means, has other distances. Build the index with rank_by='mean'."
        )


def _refuse_foreign(labels: Any, classes: Column | None, n_queries: int) -> None:
    """Raise ``LabelError``: no query has a label of the index."""
    assert classes is not None
    of = f"the index has {_some(classes)}"
    if labels is not None:
        of = f"they have {_some(Column(np.unique(Column.of('labels', labels).values)))}, {of}"
    raise LabelError(
        f"labels: none of the {n_queries:,} queries has a label of the index ({of}). Pass queries "
        "of its classes, named as there; without labels, pass matches=."
    )


def _some(labels: Column, most: int = 3) -> str:
    rest = ", ..." if len(labels) > most else ""
    return ", ".join(repr(label) for label in labels.values[:most].tolist()) + rest


def _warn_of_copies(
    items: Items, vectors: Tensor, codes: Tensor | None, rows: Int[Tensor, " n"]
) -> None:
    """Warn if some of the queries, in these rows, are near-copies of others, or else of items."""
    vectors, codes = vectors[rows.to(vectors.device)], None if codes is None else codes[rows]
    told = warn_of_near_copies(
        vectors,
        codes,
        "queries",
        "They count as independent and are not, so that guarantees and intervals are too "
        "optimistic: pass groups=, the video or object of each, or keep one of each.",
    )
    if not told:
        warn_of_near_copies(
            vectors,
            codes,
            "queries",
            "Unless new queries have such near-copies among the items, too, guarantees and "
            "probabilities will not hold: keep what belongs together on one side, items or "
            "queries.",
            items.encoded.mean,
            items.label_codes,
        )


def _drawn_open_set(
    known: Bool[Tensor, " Q"], same: npt.NDArray[np.int64], share: float, seed: Seed
) -> Int[Tensor, " n"]:
    """Draw known queries [n] that make up the missing ``share`` of open-set queries.

    Of ``same`` [Q], equal numbers are copies, which count once and are drawn together.
    """
    if check_fraction("open_set_fraction", share) == 0:
        return torch.zeros(0, dtype=torch.long)
    one = torch.from_numpy(first_rows(same))
    missing = round(share * len(one)) - int((~known[one]).sum())
    source = as_generator(0 if seed is None else seed)
    assert source is not None
    rows = one[known[one]]
    order = torch.randperm(len(rows), generator=source, device=source.device).cpu()
    drawn = rows[order[: max(0, missing)]]
    if len(one) == len(same):
        return drawn
    copies = torch.from_numpy(np.isin(same, same[drawn.numpy()]))
    return (known & copies).nonzero().flatten()
