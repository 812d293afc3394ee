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
    """One item of the index, as ``SearchResult`` has it.

    Parameters
    ----------
    rank, row : int
        1 is the nearest; the row of the index.
    id : str or int
    label : str, int or None
    distance, distance_sd : float
        Between mean embeddings, and its standard deviation; None where it is not finite.
    match_probability : float or None
        None without a calibration.
    text : str or None
        What the item says, up to 1,000 characters: of texts, where their table is still there.
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
    """Response for one query: its neighbours, the three numbers, and whether to answer.

    Parameters
    ----------
    neighbours : list of NeighbourAnswer
        Nearest first.
    label, label_probability
        What all neighbours together say, as ``SearchResult.label``.
    unknown : bool or None
        No match in the index, by a conformal test of level alpha, from ``p_value``.
    epistemic, uncertainty : float
        Is it like anything the model knows?
    ambiguity : float or None
        How much the labels of the nearest items disagree, in nats.
    threshold : float or None
        Match probability from which to answer.
    precision : float or None
        What that threshold promises, if it was chosen for a promise.
    accepted : bool or None
        Whether to answer with the nearest neighbour; None where nothing was asked for.
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
    """An embedding with its uncertainty, as ``Embedding`` has it.

    Parameters
    ----------
    mean, variance : list of float
        [Z] each.
    uncertainty, epistemic : float
    ambiguity : float or None
        In nats; None where the fit knew no classes, as ``epistemic`` where it kept nothing.
    """

    mean: list[float]
    variance: list[float]
    uncertainty: float
    epistemic: float | None
    ambiguity: float | None


def search_answers(
    result: SearchResult, threshold: Threshold | float | None, texts: Mapping[Any, str]
) -> list[SearchAnswer]:
    """One for each query of a result; ``texts`` of items by their ids."""
    accepted = None if threshold is None else result.accepted(threshold).tolist()
    value, promised = _threshold(threshold)
    columns = {
        name: None if getattr(result, name) is None else getattr(result, name).tolist()
        for name in _COLUMNS
    }
    answers = []
    for row in range(len(result)):
        numbers = {name: _finite(_at(values, row)) for name, values in columns.items()}
        near = neighbours_of(result, row, texts)
        yes = _at(accepted, row)
        words = decision(near, numbers["unknown"], yes, value, promised)
        rest = {"threshold": value, "precision": promised, "accepted": yes, "decision": words}
        answers.append(SearchAnswer(near, **numbers, **rest))
    return answers


_COLUMNS = (
    "label", "label_probability", "unknown", "p_value", "epistemic", "uncertainty", "ambiguity",
)  # fmt: skip


def neighbours_of(
    result: SearchResult, row: int, texts: Mapping[Any, str]
) -> list[NeighbourAnswer]:
    """Return the neighbours of one query; fewer than k where an approximate engine found fewer."""
    places = result.positions[row].tolist()
    ids, labels = result.ids[row].tolist(), _row(result.labels, row)
    distance, deviation = result.distance[row].tolist(), result.distance_sd[row].tolist()
    match = _row(result.match_probability, row)
    return [
        NeighbourAnswer(
            rank + 1, place, ids[rank], _at(labels, rank), distance[rank],
            _finite(deviation[rank]), _at(match, rank), texts.get(ids[rank]),
        )
        for rank, place in enumerate(places)
        if place >= 0
    ]  # fmt: skip


def embed_answers(embedding: Embedding) -> list[EmbedAnswer]:
    """One for each input."""
    mean, variance = embedding.mean.tolist(), embedding.variance.tolist()
    uncertainty = embedding.uncertainty.tolist()
    epistemic, ambiguity = _known(embedding, "epistemic"), _known(embedding, "ambiguity")
    return [
        EmbedAnswer(mean[i], variance[i], uncertainty[i], _at(epistemic, i), _at(ambiguity, i))
        for i in range(len(mean))
    ]


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
    "Answer 'cat': a match with probability 97.0 %, and answers from 80.0 % on are promised to be \
right at least 90 % of the time."
    """
    first = neighbours[0] if neighbours else None
    if first is None or first.match_probability is None:
        return "No decision: the index is not calibrated, so distances are all that is known."
    name = first.id if first.label is None else first.label
    sure = f"a match with probability {_percent(first.match_probability)}"
    stranger = " Nothing in the index looks like a match of this query." if unknown else ""
    if accepted is None or threshold is None:
        return f"Nearest is {name!r}, {sure}. No threshold was asked for.{stranger}"
    from_on = f"{_percent(threshold)} on"
    promise = f"from {from_on} it is answered"
    if precision is not None:
        promise = (
            f"answers from {from_on} are promised to be right at least {100 * precision:g} % of "
            "the time"
        )
    if accepted:
        return f"Answer {name!r}: {sure}, and {promise}."
    if unknown:
        return f"Abstain:{stranger} {name!r} is {sure}; {promise}, of queries that are not unknown."
    return f"Abstain: {name!r} is {sure}; {promise}."


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _threshold(threshold: Threshold | float | None) -> tuple[float | None, float | None]:
    if isinstance(threshold, Threshold):
        return threshold.value, threshold.target
    return threshold, None


def _known(embedding: Embedding, name: str) -> list[float] | None:
    try:
        values: list[float] = getattr(embedding, name).tolist()
    except NotFittedError:
        return None
    return values


def _row(values: Any, row: int) -> list[Any] | None:
    return None if values is None else values[row].tolist()


def _at(values: list[Any] | None, place: int) -> Any:
    return None if values is None else values[place]


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
