"""Responses: the numbers of ``Index.search`` for one query, and a decision in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, SkipValidation

from laplace_metric._utils.display import as_percent
from laplace_metric.calibration._thresholds import Threshold, accepts
from laplace_metric.cli._output import rows_of
from laplace_metric.embedding import Embedding
from laplace_metric.errors import NotFittedError
from laplace_metric.search import SearchResult

Name = SkipValidation[str | int]
"""A name, which may hold bytes that are not UTF-8 (``_utils.names``)."""
ALWAYS = ConfigDict(json_schema_serialization_defaults_required=True)
"""Of answers whose fields are all there, None where a number is not known."""


class NeighbourAnswer(BaseModel):
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

    model_config = ALWAYS

    rank: int
    row: int
    id: Name
    label: Name | None = None
    distance: float
    distance_sd: float | None
    match_probability: float | None = None
    text: SkipValidation[str | None]


class SearchAnswer(BaseModel):
    """Response for one query: its neighbours, its numbers, and whether to answer.

    Parameters
    ----------
    neighbours : list of NeighbourAnswer
        Nearest first.
    label, label_probability
        Likeliest label among all neighbours, as ``SearchResult.label``: what is decided about.
    unknown : bool or None
        True if a conformal test of level alpha rejects "it has a match", by its ``p_value``.
    epistemic : float
        Small if the query is like the data of the fit.
    ambiguity : float or None
        Disagreement of the labels of the nearest items, in nats.
    threshold : float or None
        Probability from which to answer, of the label, or of the nearest item being a match where
        no labels calibrated the index.
    precision : float or None
        Guaranteed precision of that threshold; None if a number was given in its place.
    accepted : bool or None
        True to answer; None if the request has no threshold.
    decision : str
        The same in words.
    """

    model_config = ALWAYS

    neighbours: list[NeighbourAnswer]
    label: Name | None
    label_probability: float | None
    unknown: bool | None = None
    p_value: float | None = None
    epistemic: float
    ambiguity: float | None = None
    threshold: float | None
    precision: float | None
    accepted: bool | None
    decision: str


class EmbedAnswer(BaseModel):
    """An embedding with its numbers, as in ``Embedding``.

    Parameters
    ----------
    mean, variance : list of float
        [Z] each.
    epistemic : float
    ambiguity : float or None
        In nats; None for a fit without classes, as ``epistemic`` for one that stored nothing.
    """

    mean: list[float]
    variance: list[float]
    epistemic: float | None = None
    ambiguity: float | None = None


def search_answers(
    result: SearchResult, threshold: Threshold | float | None, texts: Mapping[Any, str]
) -> list[SearchAnswer]:
    """Return an answer for each query of a result; ``texts`` of items by their ids."""
    n, k = result.ids.shape
    columns = {name: _plain(values) for name, values in result.columns().items()}
    rows = rows_of({**columns, "row": result.positions.flatten().tolist()})
    accepted: list[bool | None] = [None] * n
    if threshold is not None and result.label_probability is not None:
        found = accepts(threshold, result.label_probability, result.p_value, result.alpha)
        accepted = found.tolist()
    elif threshold is not None:
        accepted = result.accepted(threshold).tolist()
    value, precision = threshold, None
    if isinstance(threshold, Threshold):
        value, precision = threshold.value, threshold.target
    answers = []
    for number in range(n):
        own = rows[number * k : (number + 1) * k]
        answer = {
            **own[0],  # numbers of the query stand in each of its rows
            "label": own[0].get("answer"),
            "label_probability": own[0].get("answer_probability"),
            "accepted": accepted[number],
            "threshold": value,
            "precision": precision,
        }
        # of an approximate engine, which may find fewer, row -1 is no item
        near = [row | {"text": texts.get(row["id"])} for row in own if row["row"] >= 0]
        answer |= {"neighbours": near, "decision": decision(near, answer)}
        answers.append(SearchAnswer.model_validate(answer))
    return answers


def embed_answers(embedding: Embedding) -> list[EmbedAnswer]:
    """Return an answer for each input."""
    columns = {}
    for name in EmbedAnswer.model_fields:
        with suppress(NotFittedError):
            if (values := getattr(embedding, name)) is not None:
                columns[name] = _plain(values)
    return [EmbedAnswer.model_validate(row) for row in rows_of(columns)]


def decision(neighbours: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> str:
    """Describe in plain words what to do with an answer, by the fields of `SearchAnswer`.

    Without a label of the query, the nearest item is the answer.

    Examples
    --------
    >>> near = {"id": "a.png", "label": "cat", "match_probability": 0.97}
    >>> answer = {"label": "cat", "label_probability": 0.99996, "unknown": False}
    >>> decision([near], {**answer, "accepted": True, "threshold": 0.8, "precision": 0.9})
    "Answer 'cat': right with probability > 99.9 %, and answers from 80.0 % on are guaranteed to \
be right at least 90 % of the time."
    """
    if not neighbours or neighbours[0].get("match_probability") is None:
        return "No decision: the index is not calibrated, so distances are all that is known."
    first, threshold, precision = neighbours[0], answer["threshold"], answer["precision"]
    if answer["label_probability"] is not None:
        name, p, subject, what = answer["label"], answer["label_probability"], "Likeliest", "right"
    else:
        name, p, subject, what = (
            first.get("label"),
            first["match_probability"],
            "Nearest",
            "a match",
        )
        name = first["id"] if name is None else name
    sure, unknown = f"{what} with probability {_percent(p)}", answer["unknown"]
    no_match = " Nothing in the index looks like a match of this query." if unknown else ""
    if threshold is None:
        return f"{subject} is {name!r}, {sure}. No threshold was asked for.{no_match}"
    rule = f"from {_percent(threshold)} on it is answered"
    if precision is not None:
        rule = (
            f"answers from {_percent(threshold)} on are guaranteed to be right at least "
            f"{100 * precision:g} % of the time"
        )
    if answer["accepted"]:
        return f"Answer {name!r}: {sure}, and {rule}."
    known = ", of queries that are not unknown" if unknown else ""
    return f"Abstain:{no_match} {name!r} is {sure}; {rule}{known}."


def _percent(share: float) -> str:
    return as_percent(share).replace("%", " %")


def _plain(values: Any) -> Any:
    """Return lists of numbers as JSON has them: None in the place of NaN and infinity."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    return _plain(values.tolist()) if hasattr(values, "tolist") else values
