"""Responses: the numbers of ``Index.search`` for one query, and a decision in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.embedding import Embedding
from laplace_metric.errors import NotFittedError
from laplace_metric.search import SearchResult


@dataclass(frozen=True)
class NeighbourAnswer:
    """One item of the gallery, as in ``SearchResult``.

    Parameters
    ----------
    rank, row : int
        Rank from 1, the nearest; row of the gallery.
    id : str or int
    label : str, int or None
    distance, distance_sd : float
        Distance of the mean embeddings; its standard deviation, None where it is not finite.
    match_probability : float or None
        None without a calibration.
    text : str or None
        The item itself if it is a text and its table is still there, up to 1,000 characters.
    """

    rank: int
    row: int
    id: str | int
    label: str | int | None
    distance: float
    distance_sd: float | None
    match_probability: float | None
    text: str | None = None


@dataclass(frozen=True)
class SearchAnswer:
    """Response for one query: its neighbours, its numbers, and whether to answer.

    Parameters
    ----------
    neighbours : list of NeighbourAnswer
        Nearest first.
    label, label_probability
        Likeliest label among all neighbours, as ``SearchResult.label``.
    unknown : bool or None
        True if a conformal test of level alpha rejects "it has a match", by its ``p_value``.
    epistemic, uncertainty : float
        Small if the query is like the data of the fit.
    ambiguity : float or None
        Disagreement of the labels of the nearest items, in nats.
    threshold : float or None
        Match probability from which to answer.
    precision : float or None
        Guaranteed precision of that threshold; None if a number was given in its place.
    accepted : bool or None
        True to answer with the nearest neighbour; None if the request has no threshold.
    decision : str
        The same in words.
    """

    neighbours: list[NeighbourAnswer]
    label: str | int | None
    label_probability: float | None
    unknown: bool | None
    p_value: float | None
    epistemic: float
    uncertainty: float
    ambiguity: float | None
    threshold: float | None
    precision: float | None
    accepted: bool | None
    decision: str


@dataclass(frozen=True)
class EmbedAnswer:
    """An embedding with its uncertainty, as in ``Embedding``.

    Parameters
    ----------
    mean, variance : list of float
        [Z] each.
    uncertainty, epistemic : float
    ambiguity : float or None
        In nats; None for a fit without classes, as ``epistemic`` for one that stored nothing.
    """

    mean: list[float]
    variance: list[float]
    uncertainty: float
    epistemic: float | None
    ambiguity: float | None


def search_answers(
    result: SearchResult, threshold: Threshold | float | None, texts: Mapping[Any, str]
) -> list[SearchAnswer]:
    """Return an answer for each query of a result; ``texts`` of items by their ids."""
    n = len(result)
    accepted = [None] * n if threshold is None else result.accepted(threshold).tolist()
    value = threshold.value if isinstance(threshold, Threshold) else threshold
    precision = threshold.target if isinstance(threshold, Threshold) else None
    label, label_probability = _plain(result.label, n), _plain(result.label_probability, n)
    unknown, p_value = _plain(result.unknown, n), _plain(result.p_value, n)
    epistemic, uncertainty = _plain(result.epistemic, n), _plain(result.uncertainty, n)
    ambiguity = _plain(result.ambiguity, n)
    answers = []
    for i in range(n):
        near = neighbours_of(result, i, texts)
        words = decision(near, unknown[i], accepted[i], value, precision)
        answers.append(
            SearchAnswer(
                near, label[i], label_probability[i], unknown[i], p_value[i], epistemic[i],
                uncertainty[i], ambiguity[i], value, precision, accepted[i], words,
            )
        )  # fmt: skip
    return answers


def neighbours_of(
    result: SearchResult, row: int, texts: Mapping[Any, str]
) -> list[NeighbourAnswer]:
    """Return the neighbours of one query; fewer than k where an approximate engine found fewer."""
    k = result.ids.shape[1]
    places, ids = result.positions[row].tolist(), result.ids[row].tolist()
    labels = _plain(None if result.labels is None else result.labels[row], k)
    distances, deviations = _plain(result.distance[row], k), _plain(result.distance_sd[row], k)
    match = result.match_probability
    matches = _plain(None if match is None else match[row], k)
    return [
        NeighbourAnswer(
            i + 1, places[i], ids[i], labels[i], distances[i], deviations[i], matches[i],
            texts.get(ids[i]),
        )
        for i in range(k)
        if places[i] >= 0
    ]  # fmt: skip


def embed_answers(embedding: Embedding) -> list[EmbedAnswer]:
    """Return an answer for each input."""
    n = len(embedding.mean)
    columns = [_plain(_known(embedding, name), n) for name in EmbedAnswer.__dataclass_fields__]
    return [EmbedAnswer(*numbers) for numbers in zip(*columns, strict=True)]


def decision(
    neighbours: list[NeighbourAnswer],
    unknown: bool | None,
    accepted: bool | None,
    threshold: float | None,
    precision: float | None,
) -> str:
    """Describe in plain words what to do with an answer.

    Examples
    --------
    >>> near = NeighbourAnswer(1, 0, "a.png", "cat", 0.1, 0.01, 0.97)
    >>> decision([near], False, True, 0.8, 0.9)
    "Answer 'cat': a match with probability 97.0 %, and answers from 80.0 % on are guaranteed to \
be right at least 90 % of the time."
    """
    first = neighbours[0] if neighbours else None
    if first is None or first.match_probability is None:
        return "No decision: the index is not calibrated, so distances are all that is known."
    name = first.id if first.label is None else first.label
    sure = f"a match with probability {100 * first.match_probability:.1f} %"
    no_match = " Nothing in the index looks like a match of this query." if unknown else ""
    if accepted is None or threshold is None:
        return f"Nearest is {name!r}, {sure}. No threshold was asked for.{no_match}"
    rule = f"from {100 * threshold:.1f} % on it is answered"
    if precision is not None:
        rule = (
            f"answers from {100 * threshold:.1f} % on are guaranteed to be right at least "
            f"{100 * precision:g} % of the time"
        )
    if accepted:
        return f"Answer {name!r}: {sure}, and {rule}."
    if unknown:
        return f"Abstain:{no_match} {name!r} is {sure}; {rule}, of queries that are not unknown."
    return f"Abstain: {name!r} is {sure}; {rule}."


def _known(embedding: Embedding, name: str) -> Any:
    try:
        return getattr(embedding, name)
    except NotFittedError:
        return None


def _plain(values: Any, n: int) -> list[Any]:
    """Return n values as JSON has them: without tensors, NaN and infinity."""
    if values is None:
        return [None] * n
    listed: list[Any] = values.tolist()
    return [None if isinstance(x, float) and not math.isfinite(x) else x for x in listed]
