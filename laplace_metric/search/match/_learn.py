"""A calibration from held-out queries: one half teaches, the other half keeps it honest."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.search.match._answer import Candidates, LabelPosterior
from laplace_metric.search.match._calibration import Calibration
from laplace_metric.search.match._conformal import (
    first_match_score,
    least_common_p_values,
    own_p_values,
)
from laplace_metric.search.match._hits import LabelledHits, PairFeatures, query_statistics
from laplace_metric.search.match._labels import HeldOutLabels, label_scores
from laplace_metric.search.match._probability import fit_match_probability

LEAST_KNOWN = 5
"""Held-out queries with a match in the index that each half needs at the very least."""


def calibrated(
    labelled: LabelledHits,
    k: int,
    n_items: int,
    generator: torch.Generator,
    *,
    portable: bool = False,
) -> Calibration:
    """Split the queries in two and learn from each half; see ``fit_match_probability``.

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
    matcher = fit_match_probability(features.take(k), first.match[:, :k], portable=portable)
    logits = [matcher.logit(features), matcher.logit(PairFeatures.of(second.hits))]
    per_query = logits[1][:, :k], second.match[:, :k], second.known
    honest = *per_query, first_match_score(logits[1], second.match), *_strangeness(first, second)
    sizes = k, second.match.shape[1], n_items
    grid = matcher(logits[0][:, :1])
    if labelled.codes is None:
        return Calibration(matcher, None, *sizes, *honest, grid=grid)
    labeller = LabelPosterior.fit(Candidates.of(logits[0], first.hits.voted), first.match)
    of_labels = _of_labels(labeller, (first, logits[0]), (second, logits[1]))
    answered = labeller.answer(Candidates.of(logits[0], first.hits.voted))[1]
    grid = torch.cat([grid, answered[:, None]], 1)
    return Calibration(matcher, labeller, *sizes, *honest, *of_labels, grid=grid)


def _strangeness(first: LabelledHits, second: LabelledHits) -> tuple[Tensor, Tensor]:
    """Statistics [m, 3] of the known queries of both; p-values [n] of the second half.

    A known query is judged by the others, as the next query is by all of them.
    """
    ours, theirs = (query_statistics(half.hits) for half in (first, second))
    statistics = torch.cat([ours[first.known], theirs[second.known]])
    p_value = torch.empty(len(theirs), dtype=torch.float64, device=theirs.device)
    own = own_p_values(statistics)[int(first.known.sum()) :]
    p_value[second.known] = own
    p_value[~second.known] = least_common_p_values(statistics, theirs[~second.known])
    return statistics, p_value


Half = tuple[LabelledHits, Tensor]
"""Queries, and the scores of their pairs."""


def _of_labels(
    labeller: LabelPosterior, first: Half, second: Half
) -> tuple[Tensor, Tensor, HeldOutLabels]:
    """Of the second half, the probability of each answer, whether it is right; label scores."""
    held_out, logit = second
    answer, probability = labeller.answer(Candidates.of(logit, held_out.hits.voted))
    right = held_out.match.gather(1, answer[:, None])[:, 0]
    assert held_out.classes is not None
    scores = [number for half in (first, second) for number in _own_label_scores(labeller, *half)]
    return probability, right, HeldOutLabels(held_out.classes, *scores)


def _own_label_scores(
    labeller: LabelPosterior, labelled: LabelledHits, logit: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes and scores [n] of the labels of the known queries."""
    votes, known = labelled.hits.voted, labelled.known
    scores = label_scores(labeller(Candidates.of(logit, votes)), votes.labels)
    own = scores.masked_fill(~labelled.match, -torch.inf).amax(1)
    assert labelled.codes is not None
    return labelled.codes[known].cpu(), own[known].cpu()


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of one half have a match in the index: at least {LEAST_KNOWN} are "
            "needed. Pass more queries that have one."
        )
