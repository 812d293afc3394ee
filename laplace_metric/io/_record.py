"""Values as parts of a file, by the types of their fields: nothing is written down twice.

A frozen dataclass is its own format. ``Float[np.ndarray, "n k"]`` is stored as an array of float64
[n, k]; ``Int``, ``Int8`` and ``Bool`` likewise; numbers, flags, texts, lists and mappings stand in
the JSON; a value in a value has its name and a dot before the names of what it holds. Reading
checks the same types: an axis has one length wherever its letter stands, and the length of a whole
number of the same name. ``saved`` narrows the range of a field, and a class may have a method
``check_saved`` for what no field alone says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from laplace_metric.errors import FileFormatError
from laplace_metric.io._fields import INF, Fields, checked_array

V = TypeVar("V")
TYPES = {"Float": "float64", "Int": "int64", "Int8": "int8", "Bool": "bool"}
"""Names of jaxtyping's types -> names of stored types."""
READ: dict[Any, Any] = {
    int: Fields.whole,
    float: Fields.number,
    bool: Fields.flag,
    str: Fields.text,
}


class Limits(NamedTuple):
    """Values of a field that a file may hold; ``empty``: an array may have no entry at all."""

    least: float = -INF
    most: float = INF
    infinite: bool = False
    empty: bool = False


def saved(
    least: float = -INF,
    most: float = INF,
    *,
    infinite: bool = False,
    empty: bool = False,
    **default: Any,
) -> Any:
    """Return a dataclass field with limits; ``default``, ``default_factory`` as for ``field``."""
    return field(metadata={"limits": Limits(least, most, infinite, empty)}, **default)


def record(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON content and the arrays of a value."""
    content, arrays = dict[str, Any](), dict[str, Any]()
    for one in fields(value):
        if not one.init:  # a cache is no part of the value
            continue
        held = getattr(value, one.name)
        if isinstance(held, np.ndarray):
            kind = TYPES.get(_hint(type(value), one.name)[0].__name__.partition("[")[0])
            if kind is None:
                content[one.name] = held.tolist()
            elif held.size or not _limits(one).empty:
                arrays[one.name] = np.asarray(held, kind)
        elif is_dataclass(held):
            content[one.name], below = record(held)
            arrays |= {f"{one.name}.{name}": array for name, array in below.items()}
        elif held is not None and held != INF:
            content[one.name] = _listed(held)
    return content, arrays


def record_digest(value: Any) -> str:
    """Return the first 16 digits of the sha256 of all that a file of a value holds.

    It is the same before and after the file.

    Parameters
    ----------
    value : dataclass
        Value that ``record`` takes.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    >>> record_digest(Point(1.0)) == record_digest(Point(1.0)), record_digest(Point(2.0))[:4]
    (True, 'cbf9')
    """
    content, arrays = record(value)
    sha256 = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        sha256.update(f"|{name} {array.shape}|".encode())
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()[:16]


def restored(kind: type[V], content: Fields, arrays: Mapping[str, Any], **sizes: int) -> V:
    """Return the value whose content and arrays ``record`` returned.

    Parameters
    ----------
    kind : type
        Dataclass of the value.
    content : Fields
        JSON content of it.
    arrays : mapping of name to array
        Arrays of it, tensors or NumPy arrays.
    **sizes : int
        Lengths of axes that are known, by their letters.

    Raises
    ------
    FileFormatError
        If something is missing, of another type or shape, or out of its range.
    """
    given, lengths = dict[str, Any](), dict(sizes)
    for one in fields(kind):  # type: ignore[arg-type]
        if not one.init:
            continue
        hint, optional = _hint(kind, one.name)
        there = one.name in content or one.name in arrays
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        if not there and (optional or has_default):
            if not has_default:
                given[one.name] = None
            continue
        limits = _limits(one)
        if hasattr(hint, "dim_str"):
            given[one.name] = _array(one.name, hint, content, arrays, limits, lengths)
        elif is_dataclass(hint):
            begin = f"{one.name}."
            below = {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}
            given[one.name] = restored(hint, content.inner(one.name), below, **sizes)  # type: ignore[arg-type]
        else:
            given[one.name] = _plain(one.name, hint, content, limits)
            if hint is int:
                lengths[one.name] = given[one.name]
    value: Any = kind(**given)
    if hasattr(value, "check_saved"):
        value.check_saved()
    found: V = value
    return found


def _array(
    name: str,
    hint: Any,
    content: Fields,
    arrays: Mapping[str, Any],
    limits: Limits,
    lengths: dict[str, int],
) -> Any:
    array, axes = arrays.get(name), hint.dim_str.split()
    array = array if array is None or isinstance(array, np.ndarray) else array.numpy()
    shape = [int(a) if a.isdigit() else lengths.get(a) for a in axes]
    if limits.empty and array is not None and not np.size(array):
        shape = [0]
    dtype = TYPES[hint.__name__.partition("[")[0]]
    least, most = (-INF, INF) if dtype == "bool" else (limits.least, limits.most)
    checked_array(
        f"{content.where}/{name}",
        array,
        shape,
        dtype=dtype,
        infinite=limits.infinite,
        least=least,
        most=most,
    )
    if shape != [0]:
        lengths |= {a: n for a, n in zip(axes, array.shape, strict=True) if not a.isdigit()}  # type: ignore[union-attr]
    return array


def _plain(name: str, hint: Any, content: Fields, limits: Limits) -> Any:
    """Return a number, a flag, a text, a list of texts, or a mapping of names to numbers."""
    if hint in (int, float):
        least = int(limits.least) if hint is int and limits.least > -INF else limits.least
        bounds = {"least": max(0, least) if hint is int else least}
        return READ[hint](
            content, name, **bounds, **({"most": limits.most} if hint is float else {})
        )
    if hint in READ:
        return READ[hint](content, name)
    if get_origin(hint) is np.ndarray:  # numbers or texts of any type
        listed = content.content.get(name)
        of_texts = isinstance(listed, list) and bool(listed) and isinstance(listed[0], str)
        return np.array(content.items(name, str if of_texts else int), object if of_texts else int)
    origin, (first, *rest) = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple(content.items(name, first))
    inner = content.inner(name)
    if get_origin(rest[0]) is tuple:
        n, kind = len(get_args(rest[0])), get_args(rest[0])[0]
        mapping = {key: tuple(inner.items(key, kind)) for key in inner.content}
        if any(len(one) != n for one in mapping.values()):
            raise FileFormatError(f"{inner.where} has entries of other lengths than {n}")
        return mapping
    return {key: inner.number(key) for key in inner.content}


def _listed(value: Any) -> Any:
    """Return a value with lists in the place of tuples, as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _listed(one) for name, one in value.items()}
    return [*map(_listed, value)] if isinstance(value, tuple) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Self": kind})


def _hint(kind: type, name: str) -> tuple[Any, bool]:
    """Return the type of a field, and whether it may be None."""
    hint = _hints(kind)[name]
    parts = get_args(hint)
    if NoneType in parts:
        return next(part for part in parts if part is not NoneType), True
    return hint, False


def _limits(one: Any) -> Limits:
    return one.metadata.get("limits", Limits())
