"""Responses: the numbers of ``Index.search`` for one query, and a decision in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, SkipValidation

from laplace_metric._utils.display import as_percent
from laplace_metric.calibration._thresholds import Threshold, accepts
from laplace_metric.embedding import Embedding
from laplace_metric.errors import NotFittedError
from laplace_metric.search import SearchResult

Name = SkipValidation[str | int]
"""A name, which may hold bytes that are not UTF-8 (``_utils.names``)."""
NUMBERS = (
    "label", "label_probability", "unknown", "p_value", "epistemic", "ambiguity"
)  # fmt: skip
"""Of each query, as ``SearchResult`` has them."""
ITEM = {
    "row": "positions", "id": "ids", "label": "labels", "distance": "distance",
    "distance_sd": "distance_sd", "match_probability": "match_probability",
}  # fmt: skip
"""Of each neighbour, and what ``SearchResult`` calls them."""


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

    rank: int
    row: int
    id: Name
    label: Name | None
    distance: float
    distance_sd: float | None
    match_probability: float | None
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

    neighbours: list[NeighbourAnswer]
    label: Name | None
    label_probability: float | None
    unknown: bool | None
    p_value: float | None
    epistemic: float
    ambiguity: float | None
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
    numbers = {name: _plain(getattr(result, name), [None] * n) for name in NUMBERS}
    items = {
        name: _plain(getattr(result, source), [[None] * k] * n) for name, source in ITEM.items()
    }
    by_label, accepted = result.label_probability is not None, [None] * n
    if threshold is not None and by_label:
        found = accepts(threshold, result.label_probability, result.p_value, result.alpha)
        accepted = found.tolist()
    elif threshold is not None:
        accepted = result.accepted(threshold).tolist()
    value = threshold.value if isinstance(threshold, Threshold) else threshold
    precision = threshold.target if isinstance(threshold, Threshold) else None
    answers = []
    for i in range(n):
        near = [
            {"rank": j + 1, "text": texts.get(items["id"][i][j])}
            | {name: values[i][j] for name, values in items.items()}
            for j in range(k)
            if items["row"][i][j] >= 0  # an approximate engine may find fewer
        ]
        named = (numbers["label"][i], numbers["label_probability"][i]) if by_label else None
        words = decision(near, named, numbers["unknown"][i], accepted[i], value, precision)
        decided = {"accepted": accepted[i], "threshold": value, "precision": precision}
        told = {name: values[i] for name, values in numbers.items()}
        fields = {"neighbours": near, "decision": words, **decided, **told}
        answers.append(SearchAnswer.model_validate(fields))
    return answers


def embed_answers(embedding: Embedding) -> list[EmbedAnswer]:
    """Return an answer for each input."""
    columns = {}
    for name in EmbedAnswer.model_fields:
        with suppress(NotFittedError):
            columns[name] = _plain(getattr(embedding, name), [None] * len(embedding.mean))
    rows = ({name: x[i] for name, x in columns.items()} for i in range(len(embedding.mean)))
    return [EmbedAnswer.model_validate(row) for row in rows]


def decision(
    neighbours: Sequence[Mapping[str, Any]],
    label: tuple[str | int, float] | None,
    unknown: bool | None,
    accepted: bool | None,
    threshold: float | None,
    precision: float | None,
) -> str:
    """Describe in plain words what to do with an answer.

    ``label``: the likeliest and its probability; None: the nearest item is the answer.

    Examples
    --------
    >>> near = {"id": "a.png", "label": "cat", "match_probability": 0.97}
    >>> decision([near], ("cat", 0.99996), False, True, 0.8, 0.9)
    "Answer 'cat': right with probability > 99.9 %, and answers from 80.0 % on are guaranteed to \
be right at least 90 % of the time."
    """
    if not neighbours or neighbours[0]["match_probability"] is None:
        return "No decision: the index is not calibrated, so distances are all that is known."
    first, subject, what = neighbours[0], "Nearest", "a match"
    name, p = first["id"] if first["label"] is None else first["label"], first["match_probability"]
    if label is not None:
        (name, p), subject, what = label, "Likeliest", "right"
    sure = f"{what} with probability {_percent(p)}"
    no_match = " Nothing in the index looks like a match of this query." if unknown else ""
    if accepted is None or threshold is None:
        return f"{subject} is {name!r}, {sure}. No threshold was asked for.{no_match}"
    rule = f"from {_percent(threshold)} on it is answered"
    if precision is not None:
        rule = (
            f"answers from {_percent(threshold)} on are guaranteed to be right at least "
            f"{100 * precision:g} % of the time"
        )
    if accepted:
        return f"Answer {name!r}: {sure}, and {rule}."
    known = ", of queries that are not unknown" if unknown else ""
    return f"Abstain:{no_match} {name!r} is {sure}; {rule}{known}."


def _percent(share: float) -> str:
    return as_percent(share).replace("%", " %")


def _plain(values: Any, default: Any = None) -> Any:
    """Return lists of numbers as JSON has them, without NaN and infinity; or the default."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if hasattr(values, "tolist"):
        return _plain(values.tolist())
    return default if values is None else values
