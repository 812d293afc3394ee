"""Calibration of an index by held-out queries: probabilities, thresholds, p-values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.validation import as_path, check_name, check_share
from laplace_metric.calibration._apply import Candidates, GivenHits, LabelPosterior, Verdict
from laplace_metric.calibration._conformal import (
    HeldOutLabels,
    conformal_quantile,
    label_scores,
    least_common_p_values,
    log_first_match,
)
from laplace_metric.calibration._export import VerdictGraph, VerdictModule, write_verdict
from laplace_metric.calibration._hits import (
    FEATURES,
    VOTES,
    PairFeatures,
    SearchHits,
    query_statistics,
    without_rounding,
)
from laplace_metric.calibration._probability import MatchProbability
from laplace_metric.calibration._quality import Quality, quality
from laplace_metric.calibration._sequences import QueriesNeeded, queries_needed
from laplace_metric.calibration._thresholds import Threshold, largest_guarantee, threshold_for
from laplace_metric.errors import InputError, NotFittedError

VOTED = {"share", "weighted", "ratio", "ambiguity"}
"""Features that come of labels."""


@dataclass(frozen=True, repr=False)
class Assessment(Shown):
    """Calibrated answers for Q queries.

    Parameters
    ----------
    logit : Tensor [Q, depth]
        Scores of the pairs.
    match_probability : Tensor [Q, depth]
        That query and neighbour are a match.
    p_value : Tensor [Q]
        Of "the query has a match in the index".
    answer : Tensor [Q] or None
        Which neighbour carries the likeliest label; None if no labels calibrated the index.
    label_probability : Tensor [Q] or None
        That this label is the query's.
    """

    logit: Float[Tensor, "Q depth"]
    match_probability: Float[Tensor, "Q depth"]
    p_value: Float[Tensor, " Q"]
    answer: Int[Tensor, " Q"] | None = None
    label_probability: Float[Tensor, " Q"] | None = None


@dataclass(frozen=True, repr=False)
class Calibration(Shown):
    """Match probabilities, fitted on one half of the calibration queries and tested on the other.

    Parameters
    ----------
    matcher : MatchProbability
    labeller : LabelPosterior or None
        None where matches were said rather than labelled.
    k : int
        Neighbours whose pairs it learnt from.
    depth : int
        Neighbours that retrieval sets choose from.
    n_items : int
        Of the index when it was calibrated.
    logit : Tensor [n, k]
        Scores of the pairs of the second half, and whether they are a ``match`` [n, k].
    known : Tensor [n]
        Whether the index has a match of each of those queries.
    first_match : Tensor [n]
        The score of the first true match of each, ``log_first_match``; -inf where none is among
        ``depth``.
    statistics : Tensor [m, 3]
        ``query_statistics`` of the known queries of both halves, for "unknown".
    p_value : Tensor [n]
        Of "the query has a match in the index", of each query of the second half by all other known
        ones.
    grid : Tensor [m, 1 or 2]
        Probabilities of the queries of the first half, among which thresholds are chosen: of the
        nearest neighbour, and of the answer.
    label_probability : Tensor [n] or None
        Of the answer to each, and whether it was ``right`` [n]; None without labels.
    labels : HeldOutLabels or None
        Scores of the labels of the known queries, for label sets; None without labels.
    cross_fitted : bool
        Whether the queries were the items of the index itself, each searched in a part of it
        without it (``LaplaceEmbedder.cross_index``): they are not exchangeable with new queries,
        so that no guarantee is proven, and they are no reference for drift.
    """

    matcher: MatchProbability
    labeller: LabelPosterior | None
    k: int
    depth: int
    n_items: int
    logit: Float[Tensor, "n k"]
    match: Bool[Tensor, "n k"]
    known: Bool[Tensor, " n"]
    first_match: Float[Tensor, " n"]
    statistics: Float[Tensor, "m 3"]
    p_value: Float[Tensor, " n"]
    grid: Float[Tensor, "m J"]
    label_probability: Float[Tensor, " n"] | None = None
    right: Bool[Tensor, " n"] | None = None
    labels: HeldOutLabels | None = None
    cross_fitted: bool = False

    def _sentence(self) -> str:
        of = "matches" if self.labeller is None else "labels"
        tested = f"{len(self.known):,} {'cross-fitted items' if self.cross_fitted else 'queries'}"
        return f"learnt what a match looks like from {of}, tested on {tested}."

    def _shown_rows(self) -> Rows:
        shown = {
            "queries with a match": f"{float(self.known.double().mean()):.1%}",
            "nearest is a match": f"{float(self.match[:, 0].double().mean()):.1%}",
            "looks at": ", ".join(self.looks_at),
            "neighbours": f"k={self.k}, depth={self.depth}, of {self.n_items:,} items",
            "smallest p-value": self.smallest_p_value,
        }
        return in_rows(shown.items())

    @property
    def probability(self) -> Float[Tensor, "n k"]:
        """Match probability of the pairs [n, k] of the second half."""
        return self.matcher(self.logit)

    @property
    def smallest_p_value(self) -> float:
        """``1 / (m + 1)`` of m known queries: "unknown" is never said at a smaller alpha."""
        return 1 / (len(self.statistics) + 1)

    def assess(self, hits: SearchHits) -> Assessment:
        """Everything that was learnt, said of the hits of Q queries."""
        features = PairFeatures.of(hits)
        logit = self.matcher.logit(features)
        held_out = without_rounding(self.statistics.to(logit.device))  # of old files, too
        p_value = least_common_p_values(held_out, query_statistics(hits.nearest(self.depth)))
        known = logit, self.matcher(logit), p_value
        if self.labeller is None:
            return Assessment(*known)
        return Assessment(*known, *self.labeller.answer(Candidates.of(logit, hits.voted)))

    def apply(
        self,
        distances: Any,
        labels: Any = None,
        *,
        epistemic: Any,
        uncertainty: Any = None,
        distance_sd: Any = None,
        alpha: float = 0.05,
    ) -> Verdict:
        """Assess the hits of any engine as ``Index.search`` does: a pure function of arrays.

        It holds for the items, the posterior and the ranking that it was calibrated with. Pass as
        many neighbours as the index looks at, 20 or more (or all items), in the engine's order;
        what is said of the first of them then depends on no more of them.

        Parameters
        ----------
        distances : [Q, k]
            Euclidean distances of the mean embeddings, inf where there is no neighbour. Of a
            cosine s it is ``sqrt(2 - 2 s)``; FAISS and others return its square: take the root.
        labels : [Q, k] whole numbers or strings, or None
            Of the neighbours; needed where labels calibrated it.
        epistemic : [Q]
            ``Embedding.epistemic``, or an exported graph's (the uncertainty where the fit keeps
            nothing to compare with).
        uncertainty : [Q] or None
            ``Embedding.uncertainty``; needed if the match probability looks at it.
        distance_sd : [Q, k] or None
            ``SearchResult.distance_sd``; needed if the match probability looks at it, which
            ``index.calibrate(..., portable=True)`` rules out.
        alpha : float
            Share of queries with a match that may be called unknown.

        Returns
        -------
        Verdict
            Tensors on their device where ``distances`` is one, else NumPy arrays.

        Raises
        ------
        InputError, NonFiniteError
            For shapes that do not fit, NaN, too few neighbours, and for what is needed but is not
            there.

        Warns
        -----
        DistanceScaleWarning
            If the distances of ten queries or more look like squares, or are ten times larger or
            smaller than any that calibrated.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> index = embedder.index(x[100:200], y[100:200], progress=False)
        >>> calibration = index.calibrate(x[200:300], y[200:300], portable=True)
        >>> items, queries = embedder(x[100:200]), embedder(x[300:])
        >>> distances, rows = torch.cdist(queries.mean, items.mean).topk(20, largest=False)
        >>> numbers = {"epistemic": queries.epistemic, "uncertainty": queries.uncertainty}
        >>> verdict = calibration.apply(distances, y[100:200][rows], **numbers)
        >>> expected = index.search(x[300:], k=5)
        >>> torch.allclose(verdict.match_probability[:, :5], expected.match_probability, atol=1e-5)
        True
        """
        check_share("alpha", alpha)
        given = GivenHits.of(distances, labels, uncertainty, epistemic, distance_sd)
        self._check_given(given)
        given.warn_if_scaled(self.statistics[:, 0].cpu())
        hits = given.hits()
        judged = self.assess(hits)
        numbers = {
            "match_probability": judged.match_probability,
            "p_value": judged.p_value,
            "unknown": judged.p_value <= alpha,
            "label_probability": judged.label_probability,
            "ambiguity": None if hits.votes is None else hits.votes.ambiguity,
        }
        return given.verdict(numbers, judged.answer, distances, labels, alpha)

    def export(
        self,
        path: str | Path,
        format: str = "onnx",
        *,
        alpha: float = 0.05,
        dtype: torch.dtype = torch.float32,
    ) -> VerdictGraph:
        """Write ``apply`` as one graph, beside that of the embedder (``LaplaceEmbedder.export``).

        distances, labels, epistemic, uncertainty -> the fields of ``Verdict``, for any number of
        queries and of neighbours, 20 or more (or all items). Labels are int64: numbers as they
        are, names by their place in ``VerdictGraph.names``, which the file holds. It computes in
        float64. Nothing is refused by a graph but fewer neighbours.

        Parameters
        ----------
        path : path
            Of one file, which is replaced.
        format : "onnx" | "torch"
            ONNX of opset 18 (extra ``export``), or what ``torch.export.load`` reads.
        alpha : float
            Share of queries with a match that may be called unknown; "p_value" is there for
            others.
        dtype : torch.float32 or torch.float64
            Of what enters and leaves.

        Raises
        ------
        ExportError
            If the match probability looks at ``distance_sd``: calibrate with ``portable=True``.
        InputError
            For another ``alpha`` or ``dtype``.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.

        Examples
        --------
        >>> import tempfile
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(400) % 4
        >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> index = embedder.index(x[100:200], y[100:200], progress=False)
        >>> calibration = index.calibrate(x[200:300], y[200:300], portable=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph = calibration.export(f"{folder}/verdict.pt2", "torch")
        ...     run = torch.export.load(graph.path).module()
        >>> items, queries = embedder(x[100:200]), embedder(x[300:])
        >>> distances, rows = torch.cdist(queries.mean, items.mean).topk(20, largest=False)
        >>> verdict = run(distances, y[100:200][rows], queries.epistemic, queries.uncertainty)
        >>> dict(zip(graph.outputs, verdict))["match_probability"].shape
        torch.Size([100, 20])
        """
        alpha = check_share("alpha", alpha)
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype={dtype}: pass torch.float32 or torch.float64.")
        least = min(VOTES, self.n_items)
        parts = self.matcher, self.labeller, self.statistics
        labelled = self._needs_labels
        module = VerdictModule(*parts, least=least, alpha=alpha, labelled=labelled)
        classes = None if self.labels is None else self.labels.classes
        names = tuple(classes.values.tolist()) if classes is not None and classes.is_text else None
        of = as_path("path", path), format, dtype
        facts: dict[str, Any] = {"looks_at": self.looks_at, "cross_fitted": self.cross_fitted}
        return write_verdict(module, *of, names=names, **facts)

    @property
    def looks_at(self) -> tuple[str, ...]:
        """Names of the features of a pair that its match probability depends on."""
        weights = self.matcher.score.weights.tolist()
        return tuple(name for name, w in zip(FEATURES, weights, strict=True) if w != 0)

    @property
    def _needs_labels(self) -> bool:
        votes = bool(VOTED & set(self.looks_at)) or bool((self.statistics[:, 2] != 0).any())
        return votes or self.labeller is not None

    def _check_given(self, given: GivenHits) -> None:
        """Raise ``InputError`` if something is missing that this calibration looks at."""
        seen = set(self.looks_at)
        if given.labels is None and self._needs_labels:
            raise InputError("labels are missing: pass those of the neighbours [Q, k].")
        if given.uncertainty is None and "uncertainty" in seen:
            raise InputError("uncertainty is missing: pass Embedding.uncertainty [Q].")
        if given.spread is None and "spread" in seen:
            raise InputError(
                "distance_sd is missing, at which this match probability looks: pass it, or "
                "calibrate with index.calibrate(..., portable=True)."
            )
        needed = min(VOTES, self.n_items)
        if given.labels is not None and given.distance.shape[1] < needed:
            raise InputError(
                f"distances are of {given.distance.shape[1]} neighbours: the labels of {needed} "
                "vote, so ask the engine for as many."
            )

    def threshold_for(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        confidence: float = 0.95,
        of: str = "match",
        alpha: float | None = 0.05,
    ) -> Threshold:
        """Choose which probability to accept; see ``calibration.threshold_for``.

        Unknown queries are not answered: ``SearchResult.accepted`` leaves them out by the alpha of
        the threshold, and so do the held-out queries by which it is tested. Queries without a match
        in the index that are answered count as errors, in the share in which they were among the
        held-out queries.

        Parameters
        ----------
        of : "match" | "label"
            The match probability of the nearest neighbour, or the probability of the label that
            the index answers with.
        alpha : float or None
            Share of queries with a match that may be called unknown, and are not answered then;
            None: the probability alone decides.

        Raises
        ------
        InputError
            If no threshold keeps what is asked for.
        NotFittedError
            Of labels, if none calibrated the index.
        """
        tested, abstained = self.held_out(of), self.held_out_unknown(alpha)
        found = threshold_for(
            *tested,
            precision=precision,
            recall=recall,
            confidence=confidence,
            thresholds=self._thresholds(of),
            abstained=abstained,
        )
        return replace(found, alpha=alpha, cross_fitted=self.cross_fitted)

    def largest_guarantee(self, *, of: str = "match", alpha: float | None = 0.05) -> Threshold:
        """Return the threshold of the largest precision that can be guaranteed.

        Parameters
        ----------
        of, alpha
            As for ``threshold_for``.

        Raises
        ------
        InputError
            If not even 1 % can be.
        NotFittedError
            As ``threshold_for``.
        """
        found = largest_guarantee(
            *self.held_out(of),
            abstained=self.held_out_unknown(alpha),
            thresholds=self._thresholds(of),
        )
        return replace(found, alpha=alpha, cross_fitted=self.cross_fitted)

    def queries_needed(
        self, precision: float, *, of: str = "match", alpha: float | None = 0.05
    ) -> QueriesNeeded:
        """Estimate what is missing to guarantee a precision; see ``calibration.QueriesNeeded``.

        Its ``more`` are queries to add to those of ``calibrate``, half of which test guarantees.

        Parameters
        ----------
        of, alpha
            As for ``threshold_for``.

        Raises
        ------
        InputError
            For a precision outside (0, 1).
        NotFittedError
            As ``threshold_for``.
        """
        abstained = self.held_out_unknown(alpha)
        missing = queries_needed(
            *self.held_out(of),
            precision=precision,
            abstained=abstained,
            thresholds=self._thresholds(of),
        )
        return missing if missing.more is None else replace(missing, more=2 * missing.more)

    def quality(self, n: int = 500, *, of: str = "match") -> Quality:
        """Brier score, calibration error and reliability of a probability.

        On the second half, from which the probability did not learn; n bootstrap resamples.
        """
        return quality(*self.held_out(of), n=n)

    def held_out(self, of: str = "match") -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
        """Probabilities [n] of the queries that it did not learn from, and which were right [n].

        Parameters
        ----------
        of : "match" | "label"
            Of the nearest neighbour, or of the label that the index answers with.

        Raises
        ------
        NotFittedError
            Of labels, if none calibrated the index.
        """
        if check_name("of", of, ("match", "label")) == "match":
            return self.probability[:, 0], self.match[:, 0]
        self._label_posterior()
        assert self.label_probability is not None
        assert self.right is not None
        return self.label_probability, self.right

    def held_out_unknown(self, alpha: float | None = 0.05) -> Bool[Tensor, " n"]:
        """Which of these queries [n] are called unknown, each by all others; none without alpha.

        Raises
        ------
        InputError
            For an alpha outside (0, 1).
        """
        if alpha is None:
            return torch.zeros_like(self.known)
        check_share("alpha", alpha)
        return self.p_value <= alpha

    def _thresholds(self, of: str) -> Float[Tensor, " m"]:
        """Probabilities of the first half, which no test has seen."""
        return self.grid[:, int(of == "label")]

    def _label_posterior(self) -> LabelPosterior:
        if self.labeller is None:
            raise NotFittedError(
                "this index was calibrated with matches=, which say nothing of labels: calibrate "
                "it with labels=, or read match probabilities and retrieval sets."
            )
        return self.labeller

    def label_scores(self, hits: SearchHits) -> Float[Tensor, "Q depth"]:
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

    def members(self, logit: Float[Tensor, "Q depth"], alpha: float) -> Bool[Tensor, "Q depth"]:
        """Which neighbours [Q, depth] are in the set that holds a match, from their scores.

        Raises
        ------
        InputError
            If there are fewer than ``1 / alpha - 1`` held-out queries, or if more than a share
            ``alpha`` of them has no match among ``depth``.
        """
        held_out = self.first_match[self.known]
        quantile = conformal_quantile(held_out, alpha)
        if quantile == -torch.inf:
            missed = float((held_out == -torch.inf).double().mean())
            least = math.ceil(min(1 / alpha - 1, 1e18))
            raise InputError(
                f"alpha={alpha:g} needs at least {least} held-out queries and "
                f"a match among the {self.depth} nearest items for all but a share of {alpha:g} "
                f"of them: of {len(held_out)}, {missed:.1%} have none. Ask for a larger alpha, or "
                "calibrate with a larger depth or more queries."
            )
        return log_first_match(logit) >= quantile
