"""Calibration of an index by held-out queries: probabilities, thresholds, p-values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.validation import as_path, check_name, check_share, is_tensor
from laplace_metric.calibration._assessment import Assessment, CalibratedHits
from laplace_metric.calibration._conformal import (
    RankedPoints,
    conformal_quantile,
    least_common_p_values,
    log_first_match,
)
from laplace_metric.calibration._engine_hits import (
    given_hits,
    given_labels,
    like,
    warn_if_scaled,
)
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration._unknown_share import (
    COUNTED,
    UnknownCount,
    UnknownShare,
    warn_if_unfamiliar,
)
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import Fraction
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.calibration.guarantees._theories import missing_queries
from laplace_metric.calibration.guarantees._theory import HITS, LABEL, MATCH, Guarantee
from laplace_metric.calibration.labels._label_posterior import Candidates, LabelPosterior
from laplace_metric.calibration.labels._label_sets import HeldOutLabels, label_scores
from laplace_metric.calibration.labels._label_shares import NO_GROUP, HeldOutShares, LabelShares
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.calibration.labels._votes import VOTES
from laplace_metric.calibration.probability._features import (
    FEATURE_SETS,
    FEATURES,
    TRUSTED,
    PairFeatures,
    query_statistics,
    statistic_weights,
)
from laplace_metric.calibration.probability._held_out import on_answering_scale
from laplace_metric.calibration.probability._match_probability import MatchProbability
from laplace_metric.calibration.rules._class_rule import ClassRule
from laplace_metric.calibration.rules._level_rule import LevelRule
from laplace_metric.calibration.rules._rule import Rule
from laplace_metric.errors import ExportError, FileFormatError, InputError, NotFittedError
from laplace_metric.io import WHOLE, record_digest, saved

if TYPE_CHECKING:
    import torch

    from laplace_metric.calibration._calibration_graph import CalibrationGraph
    from laplace_metric.evaluation._probability_quality import Quality

MOST_RULES = 64
"""Rules of a calibration that are stored."""
VOTED = {"share", "weighted", "ratio", "ambiguity"}
"""Features that come of labels."""


@dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """Match probabilities, each tested by calibration queries that its fit did not see.

    ``Index.calibrate`` makes it. A tested query is one of the second half of the calibration
    queries; or one of all of them, each with a fit to others.

    Parameters
    ----------
    matcher : MatchProbability
        Match probability of a pair, as a function of its features.
    labeller : LabelPosterior or None
        Probability of each label among the neighbours; None if matches calibrated it.
    k : int
        Number of neighbours of each query to which the match probability was fitted.
    depth : int
        Number of neighbours that retrieval sets choose from.
    n_items : int
        Number of items of the index when it was calibrated.
    probability : [n, k]
        Match probabilities of the pairs of the tested queries.
    match : [n, k]
        True for each of these pairs that is a match.
    known : [n]
        True for each tested query that has a match in the index.
    first_match : [n]
        Score of the first true match of each tested query, ``log_first_match``; -inf if none is
        among ``depth``.
    statistics : [m, 3]
        Statistics of all known queries (``query_statistics``), with which p-values compare.
    p_value : [n]
        Conformal p-value of "the query has a match in the index", for each tested query by all
        other known ones.
    grid : [g, 1 or 2]
        Probabilities of the queries that are not tested, among which thresholds are chosen: that of
        the nearest neighbour, and that of the answer. Empty (m = 0) if all are tested.
    label_probability : [n] or None
        Probability of the answer to each tested query. None, the default, without labels.
    right : [n] or None
        True for each tested query whose answer was right. None, the default, without labels.
    labels : HeldOutLabels or None
        Scores of the labels of the known queries, for label sets. None, the default, without
        labels.
    own_items : bool
        True if the queries were the items of the index itself, each searched in a part of it
        without it (``LaplaceEmbedder.cross_index``). They are not exchangeable with new queries, so
        that no guarantee is proven, and they are no reference for drift. Default: False.
    group : [n]
        Number of the group of each tested query, from 0. Default: empty, each is independent.
    answer : [n]
        Place of the label with which each tested query is answered, among the classes of
        ``labels``. Default: empty, without labels.
    of_views : bool
        True if each query was several views of one thing (``Index.calibrate(of=)``): then it is a
        calibration of such queries alone. Default: False.
    shares : HeldOutShares or None
        Probabilities of all labels of the calibration queries, which test coarser answers. None,
        the default, without labels.
    epistemic_weight : int or None
        Number of times that the epistemic number counts among the statistics of a p-value. None,
        the default: once.
    simulated : bool
        True if some queries have no match because the items of their class were hidden
        (``Index.calibrate(open_set_fraction=)``): queries of new classes may lie nearer, so that no
        precision and no rate of such queries is proven. Default: False.
    """

    matcher: MatchProbability
    labeller: LabelPosterior | None
    k: int = saved(least=1)
    depth: int = saved(least=1)
    n_items: int = saved(least=1)
    probability: Float[np.ndarray, "n k"] = saved(0, 1)
    match: Bool[np.ndarray, "n k"] = saved()
    known: Bool[np.ndarray, " n"] = saved()
    first_match: Float[np.ndarray, " n"] = saved(most=0, infinite=True)
    statistics: Float[np.ndarray, "m 3"] = saved()
    p_value: Float[np.ndarray, " n"] = saved(0, 1)
    grid: Float[np.ndarray, "g J"] = saved(0, 1)
    label_probability: Float[np.ndarray, " n"] | None = saved(0, 1, default=None)
    right: Bool[np.ndarray, " n"] | None = None
    labels: HeldOutLabels | None = None
    own_items: bool = False
    group: Float[np.ndarray, " n"] = saved(
        0, WHOLE, empty=True, default_factory=lambda: np.empty(0)
    )
    answer: Float[np.ndarray, " n"] = saved(
        -1, WHOLE, empty=True, default_factory=lambda: np.empty(0)
    )
    of_views: bool = saved(empty=True, default=False)
    shares: HeldOutShares | None = None
    epistemic_weight: int | None = saved(least=1, most=TRUSTED, default=None)
    simulated: bool = saved(empty=True, default=False)

    def check_saved(self) -> None:
        """Refuse values of a file of which some are of labels and some are not."""
        of_labels = (self.labeller, self.labels, self.label_probability, self.right)
        labelled = self.labeller is not None
        known = self.matcher.feature_set in FEATURE_SETS
        if (
            not known
            or self.grid.shape[1] != 1 + labelled
            or any((value is not None) != labelled for value in of_labels)
        ):
            raise FileFormatError("calibration is of labels in a part of its values only")
        found = np.isfinite(self.first_match)
        if (self.match.any(1) & ~found).any() or (found & ~self.known).any():
            raise FileFormatError(
                "calibration/first_match is not finite exactly where a match was found"
            )
        # all known queries, of which a half tests where ``grid`` has the other one
        n_known, tested = len(self.statistics), int(self.known.sum())
        of_all = self.labels and len(self.labels.codes) + len(self.labels.clustering_codes)
        enough = n_known >= tested if len(self.grid) else n_known == tested
        if not enough or (of_all is not None and n_known != of_all):
            raise FileFormatError(
                f"calibration/statistics has {n_known} rows, not one for each known query"
            )
        classes = 0 if self.labels is None else len(self.labels.classes)
        if self.answer.size and self.answer.max() >= max(1, classes):
            raise FileFormatError(f"calibration/answer holds places beyond {classes} classes")
        if self.shares is not None:
            n_tested = len(self.known)
            self.shares.check(n_tested, len(self.grid) or n_tested, classes)

    def _sentence(self) -> str:
        of = "matches" if self.labeller is None else "labels"
        tested = f"{len(self.known):,} {'cross-fitted ' * self.cross_fitted}queries"
        tested += " of several views" * self.of_views
        return f"learnt what a match looks like from {of}, tested on {tested}."

    def _shown_rows(self) -> Rows:
        shown = {
            "queries with a match": f"{self.known.mean():.1%}",
            "nearest is a match": f"{self.match[:, 0].mean():.1%}",
            "looks at": ", ".join(self.looks_at),
            "neighbours": f"k={self.k}, depth={self.depth}, of {self.n_items:,} items",
            "smallest p-value": self.smallest_p_value,
        }
        return in_rows(shown.items())

    @property
    def cross_fitted(self) -> bool:
        """True if guarantees are simulated, not proven: no half of the queries tests one fit."""
        return self.own_items or not len(self.grid)

    @property
    def decides_about(self) -> str:
        """The answer to a query: its "label", or the nearest item, a "match", without labels."""
        return "match" if self.labeller is None else "label"

    @property
    def smallest_p_value(self) -> float:
        """Smallest attainable p-value, ``1 / (m + 1)`` for m known queries."""
        return 1 / (len(self.statistics) + 1)

    @cached_property
    def identity(self) -> str:
        """Digest of its arrays and settings: a rule holds for the calibration that tested it."""
        return record_digest(self)

    @cached_property
    def _rules(self) -> dict[Any, Rule]:
        """Rules that were asked for: a server and a guard ask for the same one at each query."""
        return {}

    @cached_property
    def _class_rules(self) -> dict[Guarantee, ClassRule]:
        """Rules of classes that were asked for."""
        return {}

    @cached_property
    def _level_rules(self) -> dict[tuple[Guarantee, Levels], LevelRule]:
        """Rules of levels that were asked for."""
        return {}

    @cached_property
    def told_among(self) -> list[str]:
        """Warning of searches among some items, once a rule has given it (``SearchedAmong``)."""
        return []

    @cached_property
    def _ranked(self) -> RankedPoints:
        """Statistics of the known calibration queries, ranked."""
        return RankedPoints.of(self.statistics, statistic_weights(self.epistemic_weight))

    def assess(self, hits: SearchHits) -> Assessment:
        """Assess the hits of Q queries with the fitted model."""
        logit = self.matcher.logit(PairFeatures.of(hits))
        ours = query_statistics(hits.nearest(self.depth))
        p_value = least_common_p_values(self._ranked, ours)
        probability = self.matcher(logit)
        if self.labeller is None:
            return Assessment(logit, probability, p_value, calibration=self.identity)
        candidates = Candidates.of(logit, hits.voted)
        answer, label_probability = self.labeller.answer(candidates)
        shares = LabelShares.of(self.labeller(candidates), hits.voted.labels)
        return Assessment(
            logit, probability, p_value, answer, label_probability, self.identity, shares
        )

    def warn_if_unfamiliar(self, p_value: np.ndarray, alpha: float) -> None:
        """Warn if more of a batch of queries are unknown at ``alpha`` than chance explains.

        It does not where groups calibrated: later queries may all be of one group, which is unknown
        as a whole once in 1 / alpha, and nothing tells that from queries of another kind.

        Parameters
        ----------
        p_value : [Q]
            Conformal p-values of the queries, as in ``SearchResult.p_value``.
        alpha : float in (0, 1)
            Largest p-value of an unknown query.

        Warns
        -----
        UnfamiliarQueriesWarning
            If too many are unknown, in this batch or, once for each excess, over several calls.
            Open-set queries count, even in the share that they have among the calibration queries.
        """
        if len(self.group):
            return
        share, count = self._unknown_share(alpha), self._unknown_count
        warn_if_unfamiliar(p_value <= alpha, share, p_value <= COUNTED, count)

    def _unknown_share(self, alpha: float) -> UnknownShare:
        n_known, known = len(self.statistics), float(self.known.mean())
        n_queries = n_known if known == 0 else max(n_known, round(n_known / known))
        return UnknownShare(alpha, n_known, n_queries)

    @cached_property
    def _unknown_count(self) -> UnknownCount:
        """Count of unknown queries over all calls with this calibration."""
        return UnknownCount(self._unknown_share(COUNTED))

    def apply(
        self,
        distances: Any,
        labels: Any = None,
        *,
        epistemic: Any,
        distance_sd: Any = None,
        alpha: float = 0.05,
    ) -> CalibratedHits:
        """Assess the hits of any engine as ``Index.search`` does: a pure function of arrays.

        It holds for the items, the posterior and the ranking that it was calibrated with. Pass as
        many neighbours as the index uses, 20 or more (or all items), in the engine's order; numbers
        of the first of them do not depend on further ones.

        Parameters
        ----------
        distances : [Q, k]
            Euclidean distances of the mean embeddings, inf where there is no neighbour. For a
            cosine s it is ``sqrt(2 - 2 s)``; FAISS and others return its square: take the root.
        labels : [Q, k] whole numbers or strings, or None
            Labels of the neighbours; needed if labels calibrated it. None, the default: the
            collection has none.
        epistemic : [Q]
            Epistemic number of each query: ``Embedding.epistemic``, or that of an exported graph
            (the uncertainty, if the fit stores no points to compare with).
        distance_sd : [Q, k] or None
            Standard deviation of each distance, as ``SearchResult.distance_sd``; needed if the
            match probability depends on it. None, the default: not known, which is enough after
            ``index.calibrate(..., portable=True)``.
        alpha : float in (0, 1)
            Share of queries with a match that may be called unknown. Default: 0.05.

        Returns
        -------
        CalibratedHits
            Tensors on their device where ``distances`` is one, else NumPy arrays.

        Raises
        ------
        InputError, NonFiniteError
            For shapes that do not fit, NaN, too few neighbours, and arguments that are missing.

        Warns
        -----
        UnfamiliarQueriesWarning
            If more queries are unknown than chance explains.
        DistanceScaleWarning
            If the distances of ten queries or more look like squares, or are ten times larger or
            smaller than any that calibrated.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> index = embedder.index(x[100:200], y[100:200], progress=False)
        >>> calibration = index.calibrate(x[200:300], y[200:300], portable=True)
        >>> items, queries = embedder(x[100:200]), embedder(x[300:])
        >>> distances, rows = torch.cdist(queries.mean, items.mean).topk(20, largest=False)
        >>> found = calibration.apply(
        ...     distances, y[100:200][rows], epistemic=queries.epistemic
        ... )
        >>> expected = index.search(x[300:], k=5)
        >>> torch.allclose(found.match_probability[:, :5], expected.match_probability, atol=1e-5)
        True
        """
        check_share("alpha", alpha)
        hits = given_hits(distances, labels, epistemic, distance_sd)
        missing = {"labels": labels, "distance_sd": distance_sd}
        self._check_given({name for name, values in missing.items() if values is None}, hits)
        warn_if_scaled(hits, self.statistics[:, 0])
        found, label, nearest = self.assess(hits), None, None
        self.warn_if_unfamiliar(found.p_value, alpha)
        if labels is not None:
            names = given_labels(labels, hits.distance.shape)
            nearest = like(names[:, 0], labels) if is_tensor(distances) else names[:, 0]
        if found.carrier is not None:
            label = np.take_along_axis(names, found.carrier[:, None], 1)[:, 0]
            label = like(label, labels) if is_tensor(distances) else label
        return CalibratedHits(
            like(found.match_probability, distances),
            like(found.p_value, distances),
            like(found.p_value <= alpha, distances),
            label,
            like(found.label_probability, distances),
            None if hits.votes is None else like(hits.votes.ambiguity, distances),
            nearest,
            alpha,
            self.identity,
        )

    def export(
        self,
        path: str | Path,
        format: str = "onnx",
        *,
        alpha: float = 0.05,
        dtype: torch.dtype | None = None,
    ) -> CalibrationGraph:
        """Write ``apply`` as one graph, next to that of the embedder (``LaplaceEmbedder.export``).

        distances, labels, epistemic -> the fields of ``CalibratedHits``, for any number of
        queries and of neighbours, 20 or more (or all items). Labels are int64: numbers as they
        are, names by their place in ``CalibrationGraph.names``, which the file holds. It
        computes in float64. Nothing is refused by a graph but fewer neighbours.

        Parameters
        ----------
        path : path
            Name of one file, such as "calibration.onnx", which is replaced.
        format : "onnx" | "torch"
            Format of the file: ONNX of opset 18 (extra ``export``), or a program that
            ``torch.export.load`` reads. Default: "onnx".
        alpha : float in (0, 1)
            Share of queries with a match that may be called unknown. Compare the output "p_value"
            yourself for another one. Default: 0.05.
        dtype : torch.float32, torch.float64 or None
            Type of the inputs and outputs. None, the default: float32.

        Raises
        ------
        ExportError
            If the answers depend on ``distance_sd`` or on the class model of the index: calibrate
            with ``portable=True``.
        InputError
            For another ``alpha`` or ``dtype``.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.

        Examples
        --------
        >>> import tempfile
        >>> from laplace_metric import LaplaceEmbedder
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> index = embedder.index(x[100:200], y[100:200], progress=False)
        >>> calibration = index.calibrate(x[200:300], y[200:300], portable=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph = calibration.export(f"{folder}/found.pt2", "torch")
        ...     run = torch.export.load(graph.path).module()
        >>> items, queries = embedder(x[100:200]), embedder(x[300:])
        >>> distances, rows = torch.cdist(queries.mean, items.mean).topk(20, largest=False)
        >>> found = run(distances, y[100:200][rows], queries.epistemic)
        >>> dict(zip(graph.outputs, found))["match_probability"].shape
        torch.Size([100, 20])
        """
        from laplace_metric.calibration._calibration_graph import (
            CalibrationModule,
            write_calibration_graph,
        )

        alpha = check_share("alpha", alpha)
        if "spread" in self.looks_at or self.asks_classes:
            raise ExportError(
                "this calibration looks at distance_sd or the class model of its index, which no "
                "other engine knows: calibrate with index.calibrate(..., portable=True)."
            )
        module = CalibrationModule(
            self.matcher,
            self.labeller,
            self.statistics,
            epistemic_weight=self.epistemic_weight,
            least=min(VOTES, self.n_items),
            alpha=alpha,
            labelled=self._needs_labels,
        )
        classes = None if self.labels is None else self.labels.classes
        names = tuple(classes) if classes is not None and classes.dtype == object else None
        return write_calibration_graph(
            module,
            as_path("path", path),
            format,
            dtype,
            names=names,
            looks_at=self.looks_at,
            cross_fitted=self.cross_fitted,
        )

    @property
    def looks_at(self) -> tuple[str, ...]:
        """Names of the features of a pair that its match probability depends on."""
        weights = self.matcher.score.weights
        return tuple(name for name, w in zip(FEATURES, weights, strict=True) if w != 0)

    @property
    def asks_classes(self) -> bool:
        """True if answers depend on the class model of the index."""
        pool = 0.0 if self.labeller is None else float(self.labeller.numbers[2])
        return "class_model" in self.looks_at or pool != 0

    @property
    def _needs_labels(self) -> bool:
        votes = bool(VOTED & set(self.looks_at)) or bool((self.statistics[:, 2] != 0).any())
        return votes or self.labeller is not None

    def _check_given(self, missing: set[str], hits: SearchHits) -> None:
        """Raise ``InputError`` if something is missing that this calibration uses."""
        if self.asks_classes:
            raise InputError(
                "this calibration asks the class model of its index, which no other engine has: "
                "calibrate with index.calibrate(..., portable=True)."
            )
        if "labels" in missing and self._needs_labels:
            raise InputError("labels are missing: pass those of the neighbours [Q, k].")
        if "distance_sd" in missing and "spread" in self.looks_at:
            raise InputError(
                "distance_sd is missing, at which this match probability looks: pass it, or "
                "calibrate with index.calibrate(..., portable=True)."
            )
        needed, given = min(VOTES, self.n_items), hits.distance.shape[1]
        if "labels" not in missing and given < needed:
            raise InputError(
                f"distances are of {given} neighbours: the labels of {needed} "
                "vote, so ask the engine for as many."
            )

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
        """Return the rule that answers most and keeps one of these rates.

        Unknown queries are not answered, neither later nor among the held-out queries that test the
        rate. Queries without a match in the index that are answered count as errors, in the share
        in which they were among the held-out queries.

        Parameters
        ----------
        precision : float in (0, 1) or None
            Smallest share of the answers that are right. Pass exactly one of the four rates; None,
            the default, for the others.
        recall : float in (0, 1) or None
            Smallest share of the right answers that are given. None, the default: another rate.
        fmr : float in (0, 1) or None
            Largest false match rate (1:1): share of the pairs of a query and one of its k
            neighbours that are no match and are accepted. None, the default: another rate.
        fpir : float in (0, 1) or None
            Largest false positive identification rate (1:N): share of the queries without a match
            in the index that are answered. It counts each such calibration query as independent;
            queries of one new class are not, so take one a class. None, the default: another rate.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which the rate is kept. A higher one answers
            fewer queries. Default: 0.95.
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
        InputError
            Unless one rate is given; if it cannot be guaranteed, with what would do. For ``fmr``,
            ``fpir`` and ``open_set_fraction`` of a cross-fitted calibration.
        NotFittedError
            For labels, if none calibrated the index.
        """
        about = of
        if about != HITS:
            about = MATCH if fmr is not None and of is None else self._about(of)
        asked = Guarantee.of_rates(
            precision,
            recall,
            fmr,
            fpir,
            confidence=confidence,
            of=about,
            alpha=alpha,
            open_set_fraction=open_set_fraction,
        )
        if asked.quantity == "fmr" and about == LABEL:
            raise InputError("fmr= is a rate of comparisons, not of labels: pass of='match'.")
        # between a look and a read another thread may clear the rules
        if (known := self._rules.get(asked)) is not None:
            return known
        queries = self.queries(MATCH if about == HITS else about, alpha)
        rule = Rule.guaranteeing(queries, asked, calibration=self.identity)
        if len(self._rules) >= MOST_RULES:
            self._rules.clear()
        self._rules[asked] = rule
        return rule

    def guarantee_by_class(
        self, precision: float, *, confidence: float = 0.95, alpha: float | None = 0.05
    ) -> ClassRule:
        """Return the rule that keeps a precision of the answers of each class.

        Classes with enough calibration queries that are answered with them are tested, each at an
        equal share of the level (Bonferroni); the answers of the others are not given.

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
        InputError
            If it can be guaranteed of no class, with the queries that each would need.
        NotFittedError
            If no labels calibrated the index.
        """
        labels = self.held_out_labels()
        if not len(self.answer):
            raise InputError(
                "this calibration was saved without the labels of its answers: calibrate again."
            )
        queries = self.queries("label", alpha)
        answer = self.answer.astype(np.intp)
        share = check_share("precision", precision)
        asked = Guarantee("precision", share, confidence, LABEL, alpha)
        if (made := self._class_rules.get(asked)) is None:
            made = ClassRule.of_classes(queries, asked, answer, labels.classes, self.identity)
            if len(self._class_rules) >= MOST_RULES:
                self._class_rules.clear()
            self._class_rules[asked] = made
        return made

    def guarantee_by_level(
        self,
        precision: float,
        coarser: Any,
        *,
        confidence: float = 0.95,
        alpha: float | None = 0.05,
    ) -> LevelRule:
        """Return the rule that answers with a coarser group where the label is not sure enough.

        The answers of each level, labels or groups of them, keep the precision, all at once; see
        ``LevelRule``. A query whose label no item has counts as wrong at every level.

        Parameters
        ----------
        precision : float in (0, 1)
            Smallest share of the answers of each level that are right.
        coarser : mapping of label to group, or a list of them
            Groups of the labels at each level, from fine to coarse.
        confidence : float in (0, 1)
            Probability, over calibration sets, with which it holds for all levels at once.
            Default: 0.95.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        InputError
            If it can be guaranteed of no level; for levels that are not nested or miss a label.
        NotFittedError
            If no labels calibrated the index.

        Warns
        -----
        LaplaceMetricWarning
            For a level with one group of everything.
        """
        classes = self.held_out_labels().classes.tolist()
        levels = Levels.read(coarser, classes)
        if self.shares is None:
            raise InputError(
                "this calibration was saved without the probabilities of all labels, which coarser "
                "answers take: calibrate again."
            )
        share = check_share("precision", precision)
        asked = Guarantee("precision", share, confidence, LABEL, alpha)
        key = asked, levels
        if (made := self._level_rules.get(key)) is None:
            tested = [self.queries("label", alpha)]
            for level in range(1, len(levels)):
                tested.append(self._of_groups(tested[0], levels.coded(classes, level)[1]))
            made = LevelRule.of_levels(tested, asked, levels, self.identity)
            if len(self._level_rules) >= MOST_RULES:
                self._level_rules.clear()
            self._level_rules[key] = made
        return made

    def _of_groups(
        self, fine: CalibrationQueries, group_of: npt.NDArray[np.intp]
    ) -> CalibrationQueries:
        """Return the same queries, answered with the likeliest group of each."""
        shares, n = self.shares, len(self.known)
        assert shares is not None
        answer, probability = shares.tested.answers(group_of, n)
        known = shares.truth >= 0
        truth = np.where(known, group_of[shares.truth.clip(min=0)], NO_GROUP)
        grid = np.empty(0)
        if len(self.grid):
            grid = shares.other.answers(group_of, len(self.grid))[1]
        else:
            answering = shares.other.answers(group_of, n)[1]
            pair = probability[:, None], answering[:, None]
            probability = on_answering_scale(*pair, np.ones((n, 1), bool))[:, 0]
        return CalibrationQueries.of_answers(
            probability,
            (answer == truth) & known,
            self.known,
            grid=grid,
            abstained=fine.abstained,
            cross_fitted=self.cross_fitted,
            group=self.group,
            simulated=self.simulated,
        )

    def largest_guarantee(
        self, *, confidence: float = 0.95, of: str | None = None, alpha: float | None = 0.05
    ) -> Rule:
        """Return the rule of the largest precision, in whole per cent, that can be guaranteed.

        It is chosen by the data, and holds with ``confidence`` all the same.

        Parameters
        ----------
        confidence : float in (0, 1)
            Probability, over calibration sets, with which the precision is kept. Default: 0.95.
        of : "match" | "label" or None
            Answer that is right or wrong, as for ``guarantee``. None, the default: what the index
            answers with.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown, and are not answered then.
            None: the probability alone decides. Default: 0.05.

        Raises
        ------
        InputError
            If not even 1 % can be guaranteed.
        NotFittedError
            For labels, if none calibrated the index.
        """
        asked = Guarantee("precision", None, confidence, self._about(of), alpha)
        queries = self.queries(asked.of, alpha)
        return Rule.of_largest(queries, asked, calibration=self.identity)

    def queries_needed(
        self, precision: float, *, of: str | None = None, alpha: float | None = 0.05
    ) -> QueriesNeeded:
        """Estimate what is missing to guarantee a precision; see ``calibration.QueriesNeeded``.

        Its ``more_queries`` are queries to add to those of ``calibrate``.

        Parameters
        ----------
        precision : float in (0, 1)
            Precision to be guaranteed with 95 % confidence.
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
            For labels, if none calibrated the index.
        """
        share = check_share("precision", precision)
        asked = Guarantee("precision", share, of=self._about(of), alpha=alpha)
        return missing_queries(self.queries(asked.of, alpha), asked)

    def queries(self, of: str | None = None, alpha: float | None = 0.05) -> CalibrationQueries:
        """Return the queries that test what is guaranteed of an answer.

        Parameters
        ----------
        of : "match" | "label" or None
            Answer that is right or wrong, as for ``guarantee``. None, the default: what the index
            answers with.
        alpha : float in (0, 1) or None
            Share of queries with a match that may be called unknown: those, each compared with all
            others, are not answered. None: all are. Default: 0.05.

        Raises
        ------
        InputError
            For an alpha outside (0, 1).
        NotFittedError
            For labels, if none calibrated the index.
        """
        about, abstained = self._about(of), np.zeros_like(self.known)
        if alpha is not None:
            abstained = self.p_value <= check_share("alpha", alpha)
        probability, right = self.probability, self.match
        if about == "label":
            self._label_posterior()
            assert self.label_probability is not None
            assert self.right is not None
            probability, right = self.label_probability, self.right
        return CalibrationQueries.of_answers(
            probability,
            right,
            self.known,
            grid=self.grid[:, int(about == "label")] if len(self.grid) else np.empty(0),
            abstained=abstained,
            cross_fitted=self.cross_fitted,
            # an engine may find fewer than k; a hit that there is has a probability above 0
            exists=self.probability > 0 if about == "match" else None,
            group=self.group,
            simulated=self.simulated,
        )

    def _about(self, of: str | None) -> str:
        """Return which answer is meant; None: the one that the index gives."""
        return self.decides_about if of is None else check_name("of", of, ("match", "label"))

    def quality(self, n: int = 500, *, of: str | None = None) -> Quality:
        """Compute Brier score, calibration error and reliability of a probability.

        Parameters
        ----------
        n : int
            Number of bootstrap resamples of the queries, which its fit did not see. More make
            intervals smoother, and take longer. Default: 500.
        of : "match" | "label" or None
            Probability that is measured: that the nearest item is a match, or that the label is
            right. None, the default: that of what the index answers with.

        Raises
        ------
        NotFittedError
            For labels, if none calibrated the index.
        """
        from laplace_metric.evaluation._probability_quality import quality

        return quality(*self.queries(of, None).answers(), n=n)

    def _label_posterior(self) -> LabelPosterior:
        if self.labeller is None:
            raise NotFittedError(
                "this index was calibrated with matches=, which say nothing of labels: calibrate "
                "it with labels=, or read match probabilities and retrieval sets."
            )
        return self.labeller

    def label_scores(self, hits: SearchHits) -> Float[np.ndarray, "Q depth"]:
        """Return the score of each label at its nearest neighbour; -inf elsewhere.

        Raises
        ------
        NotFittedError
            If no labels calibrated the index.
        """
        logit = self.matcher.logit(PairFeatures.of(hits))
        posterior = self._label_posterior()(Candidates.of(logit, hits.voted))
        return label_scores(posterior, hits.voted.labels)

    def held_out_labels(self) -> HeldOutLabels:
        """Return the scores that label sets need.

        Raises
        ------
        NotFittedError
            If no labels calibrated the index.
        """
        self._label_posterior()
        assert self.labels is not None
        return self.labels

    def members(
        self, logit: Float[np.ndarray, "Q depth"], alpha: float
    ) -> Bool[np.ndarray, "Q depth"]:
        """Return which neighbours [Q, depth] are in the set that holds a match, from their scores.

        Parameters
        ----------
        logit : [Q, depth]
            Scores of the pairs, as in ``Assessment``.
        alpha : float in (0, 1)
            Share of the queries with a match whose set may hold none.

        Raises
        ------
        InputError
            If there are fewer than ``1 / alpha - 1`` held-out queries, or if more than a share
            ``alpha`` of them has no match among ``depth``.
        """
        held_out = self.first_match[self.known]
        quantile = conformal_quantile(held_out, alpha)
        if quantile == -np.inf:
            missed = float((held_out == -np.inf).mean())
            least = math.ceil(min(1 / alpha - 1, 1e18))
            raise InputError(
                f"alpha={alpha:g} needs at least {least} held-out queries and "
                f"a match among the {self.depth} nearest items for all but a share of {alpha:g} "
                f"of them: of {len(held_out)}, {missed:.1%} have none. Ask for a larger alpha, or "
                "calibrate with a larger depth or more queries."
            )
        return log_first_match(logit) >= quantile
