"""What held-out labelled queries teach an index: probabilities, thresholds, who is unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.evaluation import (
    BootstrapInterval,
    Reliability,
    bootstrap_interval,
    expected_calibration_error,
)
from laplace_metric.search._items import Column
from laplace_metric.search.match._answer import Candidates, LabelPosterior
from laplace_metric.search.match._conformal import (
    conformal_quantile,
    first_match_score,
    least_common_p_values,
    log_first_match,
)
from laplace_metric.search.match._hits import PairFeatures, SearchHits, query_statistics
from laplace_metric.search.match._labels import HeldOutLabels, label_scores
from laplace_metric.search.match._probability import MatchProbability, fit_match_probability
from laplace_metric.search.match._thresholds import Threshold, threshold_for


@dataclass(frozen=True)
class Quality:
    """Of the nearest neighbours of n held-out queries.

    Parameters
    ----------
    brier : BootstrapInterval
        Mean squared gap between probability and match, in [0, 1]; 95 % interval over queries.
    ece : BootstrapInterval
        Expected calibration error over ten bins. Resampling adds noise to its bins, so that the
        interval lies too high where the error is small.
    reliability : Reliability
        For ``plots.reliability_plot``.
    """

    brier: BootstrapInterval
    ece: BootstrapInterval
    reliability: Reliability

    def __str__(self) -> str:
        ends = [f"{x.estimate:.3f} [{x.low:.3f}, {x.high:.3f}]" for x in (self.brier, self.ece)]
        return f"Brier score {ends[0]}, ECE {ends[1]}"


def quality(
    probability: Float[Tensor, " Q"], match: Bool[Tensor, " Q"], *, n: int = 500
) -> Quality:
    """From probabilities [Q] and whether they were matches [Q]; ``n`` bootstrap resamples.

    Examples
    --------
    >>> import torch
    >>> p = torch.linspace(0, 1, 200)
    >>> measured = quality(p, p > 0.5, n=100)
    >>> round(measured.brier.estimate, 4), round(measured.ece.estimate, 3)
    (0.0829, 0.249)
    """
    p, y = probability.double().contiguous(), match.double().contiguous()

    def ece(p: Tensor, y: Tensor) -> float:
        return expected_calibration_error(p, y).ece

    return Quality(
        bootstrap_interval(_brier, p, y, n=n),
        bootstrap_interval(ece, p, y, n=n),
        expected_calibration_error(p, y),
    )


def _brier(p: Tensor, y: Tensor) -> float:
    return float((p - y).square().mean())


LEAST_KNOWN = 5
"""Held-out queries with a match in the index that each half needs at the very least."""


@dataclass(frozen=True)
class LabelledHits:
    """Queries whose neighbours' labels are known.

    Parameters
    ----------
    hits : SearchHits
        Of [Q, depth] neighbours.
    match : Tensor [Q, depth]
        Whether their labels agree with the query's.
    codes : Tensor [Q]
        Place of the query's label in ``classes``, -1 if the index does not have it.
    classes : Column [C]
        Sorted labels of the index; the votes of ``hits`` have the same codes.
    """

    hits: SearchHits
    match: Bool[Tensor, "Q depth"]
    codes: Int[Tensor, " Q"]
    classes: Column

    @property
    def known(self) -> Bool[Tensor, " Q"]:
        """Whether any item of the index has the query's label [Q]."""
        return self.codes >= 0

    def __len__(self) -> int:
        return len(self.match)

    def take(self, rows: Int[Tensor, " n"] | Bool[Tensor, " Q"]) -> LabelledHits:
        """Some queries."""
        return LabelledHits(self.hits.take(rows), self.match[rows], self.codes[rows], self.classes)


@dataclass(frozen=True)
class Judgement:
    """What a calibration says of Q queries.

    Parameters
    ----------
    logit : Tensor [Q, depth]
        Scores of the pairs.
    match_probability : Tensor [Q, depth]
        That query and neighbour share their label.
    answer : Tensor [Q]
        Which neighbour carries the likeliest label.
    label_probability : Tensor [Q]
        That this label is the query's.
    p_value : Tensor [Q]
        Of "the query has a match in the index".
    """

    logit: Float[Tensor, "Q depth"]
    match_probability: Float[Tensor, "Q depth"]
    answer: Int[Tensor, " Q"]
    label_probability: Float[Tensor, " Q"]
    p_value: Float[Tensor, " Q"]


@dataclass(frozen=True)
class Calibration:
    """Probabilities of one half of the held-out queries; the other half keeps them honest.

    Parameters
    ----------
    matcher : MatchProbability
    labeller : LabelPosterior
    k : int
        Neighbours whose pairs it learnt from.
    depth : int
        Neighbours that retrieval sets choose from.
    n_items : int
        Of the index when it was calibrated.
    logit : Tensor [n, k]
        Scores of the pairs of the second half, and whether they are a ``match`` [n, k].
    known : Tensor [n]
        Whether the index has the label of each of those queries.
    first_match : Tensor [n]
        The score of the first true match of each, ``log_first_match``; -inf where none is among
        ``depth``.
    label_probability : Tensor [n]
        Of the answer to each, and whether it was ``right`` [n].
    statistics : Tensor [m, 3]
        ``query_statistics`` of the known queries of both halves, for "unknown".
    labels : HeldOutLabels or None
        Scores of the labels of the known queries, for label sets; None in files of 0.1.0.
    """

    matcher: MatchProbability
    labeller: LabelPosterior
    k: int
    depth: int
    n_items: int
    logit: Float[Tensor, "n k"]
    match: Bool[Tensor, "n k"]
    known: Bool[Tensor, " n"]
    first_match: Float[Tensor, " n"]
    label_probability: Float[Tensor, " n"]
    right: Bool[Tensor, " n"]
    statistics: Float[Tensor, "m 3"]
    labels: HeldOutLabels | None = None

    @property
    def probability(self) -> Float[Tensor, "n k"]:
        """Of the pairs [n, k] of the second half."""
        return self.matcher(self.logit)

    @property
    def smallest_p_value(self) -> float:
        """``1 / (m + 1)`` of m known queries: "unknown" is never said at a smaller alpha."""
        return 1 / (len(self.statistics) + 1)

    def judge(self, hits: SearchHits) -> Judgement:
        """Everything that was learnt, said of the hits of Q queries."""
        features = PairFeatures.of(hits)
        logit = self.matcher.logit(features)
        answer, probability = _answered(self.labeller, logit, hits)
        p_value = least_common_p_values(self.statistics.to(logit.device), query_statistics(hits))
        return Judgement(logit, self.matcher(logit), answer, probability, p_value)

    def label_scores(self, hits: SearchHits) -> Float[Tensor, "Q depth"]:
        """Of each label at its nearest neighbour, larger is likelier; -inf elsewhere."""
        return _label_scores(self.labeller, self.matcher.logit(PairFeatures.of(hits)), hits)

    def held_out_labels(self) -> HeldOutLabels:
        """What label sets need.

        Raises
        ------
        NotFittedError
            For a calibration that was saved before there were label sets.
        """
        if self.labels is None:
            raise NotFittedError(
                "this calibration was saved by 0.1.0, without the labels of its held-out queries: "
                "call index.calibrate(...) again."
            )
        return self.labels

    def threshold_for(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        confidence: float = 0.95,
        of: str = "match",
    ) -> Threshold:
        """Which probability to accept; see ``match.threshold_for``.

        Queries without a match in the index count as errors once they are accepted, in the share
        in which they were among the held-out queries.

        Parameters
        ----------
        of : "match" | "label"
            The match probability of the nearest neighbour, or the probability of the label that
            the index answers with.

        Raises
        ------
        InputError
            If no threshold keeps what is asked for.
        """
        p, correct = self._first(of)
        return threshold_for(p, correct, precision=precision, recall=recall, confidence=confidence)

    def quality(self, n: int = 500, *, of: str = "match") -> Quality:
        """Brier score, calibration error and reliability of a probability.

        On the second half, from which the probability did not learn; n bootstrap resamples.
        """
        return quality(*self._first(of), n=n)

    def _first(self, of: str) -> tuple[Tensor, Tensor]:
        if check_name("of", of, ("match", "label")) == "label":
            return self.label_probability, self.right
        return self.probability[:, 0], self.match[:, 0]

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
            raise InputError(
                f"alpha={alpha:g} needs at least {math.ceil(1 / alpha - 1)} held-out queries and "
                f"a match among the {self.depth} nearest items for all but a share of {alpha:g} "
                f"of them: of {len(held_out)}, {missed:.1%} have none. Ask for a larger alpha, or "
                "calibrate with a larger depth or more queries."
            )
        return log_first_match(logit) >= quantile


def calibrated(
    labelled: LabelledHits, k: int, n_items: int, generator: torch.Generator
) -> Calibration:
    """Split the queries in two and learn from each half.

    Raises
    ------
    InputError
        For too few queries.
    """
    order = torch.randperm(len(labelled), generator=generator, device=generator.device)
    halves = order.to(labelled.match.device).tensor_split(2)
    first, second = (labelled.take(rows) for rows in halves)
    _check(first, second)
    features = PairFeatures.of(first.hits)
    matcher = fit_match_probability(features.take(k), first.match[:, :k])
    logit = matcher.logit(features)
    labeller = LabelPosterior.fit(_candidates(logit, first.hits), first.match)
    known = [query_statistics(half.hits)[half.known] for half in (first, second)]
    taught = _own_label_scores(labeller, logit, first)
    return _honest(matcher, labeller, second, (torch.cat(known), taught), k, n_items)


def _honest(
    matcher: MatchProbability,
    labeller: LabelPosterior,
    held_out: LabelledHits,
    of_first: tuple[Tensor, tuple[Tensor, Tensor]],
    k: int,
    n_items: int,
) -> Calibration:
    logit, match = matcher.logit(PairFeatures.of(held_out.hits)), held_out.match
    answer, probability = _answered(labeller, logit, held_out.hits)
    right = match.gather(1, answer[:, None])[:, 0]
    first_match = first_match_score(logit, match)
    per_query = logit[:, :k], match[:, :k], held_out.known, first_match, probability, right
    statistics, taught = of_first
    labels = HeldOutLabels(held_out.classes, *taught, *_own_label_scores(labeller, logit, held_out))
    return Calibration(
        matcher, labeller, k, match.shape[1], n_items, *per_query, statistics, labels
    )


def _candidates(logit: Tensor, hits: SearchHits) -> Candidates:
    assert hits.votes is not None  # labelled queries were asked of a labelled index
    return Candidates.of(logit, hits.votes)


def _answered(labeller: LabelPosterior, logit: Tensor, hits: SearchHits) -> tuple[Tensor, Tensor]:
    """The neighbour with the likeliest label [Q], and the probability of that label."""
    best = labeller(_candidates(logit, hits)).max(1)
    return best.indices, best.values


def _label_scores(labeller: LabelPosterior, logit: Tensor, hits: SearchHits) -> Tensor:
    assert hits.votes is not None
    return label_scores(labeller(_candidates(logit, hits)), hits.votes.labels)


def _own_label_scores(
    labeller: LabelPosterior, logit: Tensor, labelled: LabelledHits
) -> tuple[Tensor, Tensor]:
    """Codes and scores [n] of the labels of the known queries."""
    scores = _label_scores(labeller, logit, labelled.hits).masked_fill(~labelled.match, -torch.inf)
    known = labelled.known
    return labelled.codes[known].cpu(), scores.amax(1)[known].cpu()


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of one half have a match in the index: at least {LEAST_KNOWN} are "
            "needed. Pass more queries of labels that it holds."
        )
