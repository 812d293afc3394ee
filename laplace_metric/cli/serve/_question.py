"""Request of a client: one query, how many neighbours, and when to answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from laplace_metric._utils.validation import check_count, check_real, check_share
from laplace_metric.cli.serve._guard import Limits, RequestRefused
from laplace_metric.cli.sources import ARRAYS, IMAGES, TEXTS

QUERIES = {"image": IMAGES, "text": TEXTS, "vector": ARRAYS}
"""The fields that hold a query, and the kind of index that takes each."""
ALPHA = 0.05


@dataclass(frozen=True)
class Question:
    """One query of a client.

    Parameters
    ----------
    kind : "images" | "texts" | "arrays"
    query : bytes, str or list of numbers
        An image file, a text, or a vector [D].
    k : int
        Neighbours.
    threshold : float or None
        Match probability from which to answer.
    precision : float or None
        Promise in its place: of the answers, this share is right.
    alpha : float
        Share of known queries that may be called unknown.
    """

    kind: str
    query: bytes | str | list[float]
    k: int = 5
    threshold: float | None = None
    precision: float | None = None
    alpha: float = ALPHA

    @classmethod
    def of(cls, fields: Mapping[str, Any], limits: Limits | None = None) -> Question:
        """From the fields of a JSON object, of a form or of an address.

        Numbers may be texts, as they are in forms and addresses; an empty one counts as left out.

        Raises
        ------
        RequestRefused
            For a field that is not known, no query or two, or a number out of range.

        Examples
        --------
        >>> Question.of({"text": "a red bird", "k": "3"}).k
        3
        """
        limits = Limits() if limits is None else limits
        _check_names(fields)
        _check_unicode(fields)
        [name] = _named_query(fields)
        numbers = {
            field: read(field, fields[field])
            for field, read in NUMBERS.items()
            if fields.get(field) not in (None, "")
        }
        question = cls(QUERIES[name], _QUERY_READERS[name](fields[name], limits), **numbers)
        if question.k > limits.k:
            raise RequestRefused(f"k={question.k}: at most {limits.k} neighbours are given.")
        if question.threshold is not None and question.precision is not None:
            raise RequestRefused("threshold and precision: give one of them.")
        return question

    def with_default(self, precision: float | None) -> Question:
        """With the server's promise, where the client asked for none."""
        if self.threshold is not None or self.precision is not None:
            return self
        return replace(self, precision=precision)


def json_fields(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object.

    Raises
    ------
    RequestRefused
        For anything else; NaN and Infinity are no JSON.

    Examples
    --------
    >>> json_fields(b'{"vector": [1, 2], "k": 3}')
    {'vector': [1, 2], 'k': 3}
    """
    try:
        fields = json.loads(body, parse_constant=_no_number, object_pairs_hook=_object)
    except RequestRefused:
        raise
    except (ValueError, RecursionError) as error:  # also an integer of more than 4,300 digits
        raise RequestRefused(f"the body is no JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RequestRefused('the body is JSON, but no object: send {"text": ...} or the like.')
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestRefused("the body names a field twice: give each once.")
    return fields


def _no_number(name: str) -> NoReturn:
    raise RequestRefused(f"the body holds {name}: every number must be finite.")


def _check_names(fields: Mapping[str, Any]) -> None:
    known = (*QUERIES, *NUMBERS)
    for name in fields:
        if name not in known:
            raise RequestRefused(f"field {name!r:.60} is not known: give {', '.join(known)}.")


def _check_unicode(fields: Mapping[str, Any]) -> None:
    """JSON can escape half of a surrogate pair, which is no character and cannot be encoded."""
    for name, value in fields.items():
        try:
            if isinstance(value, str):
                value.encode()
        except UnicodeEncodeError as error:
            message = f"{name} holds half of a surrogate pair: give whole characters."
            raise RequestRefused(message) from error


def _named_query(fields: Mapping[str, Any]) -> list[str]:
    names = [name for name in QUERIES if fields.get(name) not in (None, "", b"")]
    if len(names) != 1:
        raise RequestRefused(
            f"{len(names)} queries ({', '.join(names) or 'none'}): give one of "
            f"{', '.join(QUERIES)}."
        )
    return names


def _image(value: Any, limits: Limits) -> bytes:
    if not isinstance(value, bytes):
        raise RequestRefused(
            "image is no file: send it as the body (Content-Type: image/png or the like), or as a "
            "file of a form."
        )
    return value


def _text(value: Any, limits: Limits) -> str:
    if not isinstance(value, str):
        raise RequestRefused(f"text is a {type(value).__name__}: give a string.")
    if len(value) > limits.text:
        raise RequestRefused(
            f"text has {len(value):,} characters: at most {limits.text:,} are read."
        )
    if not value.strip():
        raise RequestRefused("text is blank: give some words.")
    return value


def _vector(value: Any, limits: Limits) -> list[float]:
    if isinstance(value, str):  # of a form
        value = json_fields(b'{"vector": ' + value.encode() + b"}")["vector"]
    if not isinstance(value, list) or not value:
        raise RequestRefused("vector is no list of numbers: give [x1, ..., xD].")
    if limits.width not in (None, len(value)):
        raise RequestRefused(
            f"vector has {len(value):,} numbers, and the items of this index have "
            f"{limits.width:,}: give as many, from the same encoder."
        )
    for place, number in enumerate(value):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise RequestRefused(f"vector[{place}] is {number!r:.40}: give a number.")
        if not -1e300 < number < 1e300:
            raise RequestRefused(f"vector[{place}] is too large: every number must be finite.")
    return [float(number) for number in value]


_QUERY_READERS: dict[str, Callable[[Any, Limits], Any]] = {
    "image": _image,
    "text": _text,
    "vector": _vector,
}


def _number(name: str, value: Any) -> Any:
    """A number of JSON, or one that was written as a text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value) if name != "k" else int(value)
    except ValueError as error:
        raise RequestRefused(f"{name} is {value!r:.40}: give a number.") from error


def _share(name: str, value: Any) -> float:
    return check_share(name, _number(name, value))


def _threshold(name: str, value: Any) -> float:
    number = check_real(name, _number(name, value))
    if not 0 <= number <= 1:
        raise RequestRefused(f"threshold={number:g}: give a probability from 0 to 1.")
    return number


NUMBERS: dict[str, Callable[[str, Any], Any]] = {
    "k": lambda name, value: check_count(name, _number(name, value)),
    "threshold": _threshold,
    "precision": _share,
    "alpha": _share,
}
"""The other fields, and how each is read."""
