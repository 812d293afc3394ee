"""JSON within limits, and what two JSON values differ in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

MOST_DEPTH = 100
"""Lists and objects inside each other; a deeper JSON is none of ours."""


def parsed(text: str | bytes) -> Any:
    """Parse JSON that others may have written.

    Raises
    ------
    ValueError
        If it is no JSON, or nested more than ``MOST_DEPTH`` deep.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"JSON nested more than {MOST_DEPTH} deep") from error
    level = _nested([value])
    for _ in range(MOST_DEPTH):
        level = _nested(
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        )
    if level:
        raise ValueError(f"JSON nested more than {MOST_DEPTH} deep")
    return value


def _nested(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, (dict, list))]


def json_text(content: Any, *, ascii_only: bool = False) -> str:
    """Return indented JSON; NaN and infinity, which JSON lacks, become null.

    Parameters
    ----------
    content : JSON value
        Value to write; it may hold NaN and infinity.
    ascii_only : bool
        Escape every character that is not ASCII. Default: False.
    """
    return json.dumps(_finite(content), indent=2, ensure_ascii=ascii_only) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def difference(saved: Any, current: Any) -> str | None:
    """Name the first difference of two JSON values, in words; None where they are the same.

    Parameters
    ----------
    saved, current : JSON values
        Values to compare, that of a file and that of now.

    Examples
    --------
    >>> difference({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    'a.b is 1 there and 3 here'
    """
    return _difference(saved, json.loads(json.dumps(current)), "")


def _difference(saved: Any, current: Any, name: str) -> str | None:
    if not isinstance(saved, dict) or not isinstance(current, dict):
        return None if saved == current else f"{name} is {saved!r} there and {current!r} here"
    inner = {key: f"{name}.{key}" if name else key for key in {**current, **saved}}
    found = (_difference(saved.get(key), current.get(key), n) for key, n in inner.items())
    return next((words for words in found if words is not None), None)
