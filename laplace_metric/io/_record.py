"""Values as parts of a file, by the types of their fields: nothing is written down twice.

A frozen dataclass is its own format. ``Float[np.ndarray, "n k"]`` is stored as an array of float64
[n, k]; ``Int``, ``Int8``, ``UInt64`` and ``Bool`` likewise. ``Float[Tensor, "n k"]`` is stored in
the floating-point type that the tensor has; ``Float32`` and ``Float64`` name one. Numbers, flags,
texts, lists and mappings stand in the JSON; a value in a value, in a list or in a mapping has its
name and a dot before the names of what it holds. Reading checks the same types: an axis has one
length wherever its letter stands, and the length of a whole number of the same name. ``saved``
narrows the range of a field, ``unsaved`` leaves it to the reader, and a class may have a method
``check_saved`` for what no field alone says.

Nothing here imports torch: a file of numbers is read without it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from laplace_metric.errors import FileFormatError
from laplace_metric.io._fields import INF, LARGEST, Fields, checked_array

V = TypeVar("V")
TYPES = {
    "Float": "float64",
    "Float32": "float32",
    "Float64": "float64",
    "Int": "int64",
    "Int8": "int8",
    "Int64": "int64",
    "UInt64": "uint64",
    "Bool": "bool",
}
"""Names of jaxtyping's types -> names of stored types; "Float" of a tensor is any floating type."""
READ: dict[Any, Any] = {bool: Fields.flag, str: Fields.text}


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


def unsaved(**default: Any) -> Any:
    """Return a dataclass field that no file holds: ``restored`` is given its value."""
    return field(metadata={"unsaved": True}, **default)


def record(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON content and the arrays of a value."""
    content, arrays = dict[str, Any](), dict[str, Any]()
    for one in _saved_fields(type(value)):
        held, hint = getattr(value, one.name), _hint(type(value), one.name)[0]
        if held is None:
            continue
        if hasattr(hint, "dim_str"):
            if math.prod(held.shape) or not _limits(one).empty:
                is_numpy = isinstance(held, np.ndarray)
                arrays[one.name] = np.asarray(held, _dtype(hint)) if is_numpy else held
        else:
            content[one.name], inside = _written(held)
            arrays |= {f"{one.name}.{name}": array for name, array in inside.items()}
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


def restored(
    kind: type[V],
    content: Fields,
    arrays: Mapping[str, Any],
    *,
    given: Mapping[str, Any] | None = None,
    values: bool = True,
    **sizes: int,
) -> V:
    """Return the value whose content and arrays ``record`` returned.

    Parameters
    ----------
    kind : type
        Dataclass of the value.
    content : Fields
        JSON content of it.
    arrays : mapping of name to array
        Arrays of it, tensors or NumPy arrays.
    given : mapping of name to value, or None
        Values of the fields that are ``unsaved``. None, the default: it has none.
    values : bool
        Check the values of arrays, not only types and shapes. Default: True; False for large arrays
        that stay on disk.
    **sizes : int
        Lengths of axes that are known, by their letters.

    Raises
    ------
    FileFormatError
        If something is missing, of another type or shape, or out of its range.
    """
    found, lengths = dict(given or {}), dict(sizes)
    for one in _saved_fields(kind):
        (hint, optional), limits = _hint(kind, one.name), _limits(one)
        if one.name not in content and one.name not in arrays:
            if optional:
                found[one.name] = None
            if optional or limits.empty:  # ``record`` leaves these out
                continue
        if hasattr(hint, "dim_str"):
            array = arrays.get(one.name)
            name = f"{content.where}/{one.name}"
            found[one.name] = _array(name, hint, array, limits, lengths, values=values)
        else:
            found[one.name] = _plain(one.name, hint, content, arrays, limits, sizes)
            if hint is int:
                lengths[one.name] = found[one.name]
    value: Any = kind(**found)
    if hasattr(value, "check_saved"):
        value.check_saved()
    restored_value: V = value
    return restored_value


def below(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays whose names begin with a prefix, without it.

    Examples
    --------
    >>> below("engine.", {"mean": 1, "engine.lists": 2})
    {'lists': 2}
    """
    return {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}


def _array(
    name: str, hint: Any, array: Any, limits: Limits, lengths: dict[str, int], *, values: bool
) -> Any:
    """Return an array that has the type, the shape and the range of its field."""
    axes, is_numpy = hint.dim_str.split(), hint.array_type is np.ndarray
    shape = [int(a) if a.isdigit() else lengths.get(a) for a in axes]
    if limits.empty and array is not None and not math.prod(array.shape):
        shape = [0]
    dtype = _dtype(hint)
    least, most = (-INF, INF) if dtype == "bool" else (limits.least, limits.most)
    checked_array(
        name,
        array,
        shape,
        dtype=dtype,
        infinite=limits.infinite,
        least=least,
        most=most,
        values=values,
    )
    if shape != [0]:
        lengths |= {a: n for a, n in zip(axes, array.shape, strict=True) if not a.isdigit()}
    return array.numpy() if is_numpy and not isinstance(array, np.ndarray) else array


def _plain(
    name: str,
    hint: Any,
    content: Fields,
    arrays: Mapping[str, Any],
    limits: Limits,
    sizes: dict[str, int],
) -> Any:
    """Return a number, a flag, a text, a record, or a list or a mapping of them."""
    if hint is int:
        most = LARGEST if limits.most == INF else int(limits.most)
        least = 0 if limits.least == -INF else int(limits.least)
        return content.whole(name, least=least, most=most)
    if hint is float:
        return content.number(name, least=limits.least, most=limits.most, infinite=limits.infinite)
    if hint in READ:
        return READ[hint](content, name)
    inside = below(f"{name}.", arrays)
    if is_dataclass(hint):
        return restored(hint, content.inner(name), inside, **sizes)  # type: ignore[arg-type]
    if get_origin(hint) is np.ndarray:  # numbers or texts of any type
        listed = content.content.get(name)
        of_texts = isinstance(listed, list) and bool(listed) and isinstance(listed[0], str)
        return np.array(content.items(name, str if of_texts else int), object if of_texts else int)
    origin, (first, *rest) = get_origin(hint), get_args(hint)
    is_list = origin in (tuple, list)
    if is_list and first in (int, str):
        found = content.items(name, first)
    else:
        inner = content.entries(name) if is_list else content.inner(name)
        entry = first if is_list else rest[0]
        each = {k: _plain(k, entry, inner, inside, limits, sizes) for k in inner.content}
        if not is_list:
            return each
        found = [*each.values()]
    if origin is tuple and ... not in rest and len(found) != 1 + len(rest):
        raise FileFormatError(
            f"{content.where}.{name} has {len(found)} entries, not {1 + len(rest)}"
        )
    return origin(found)


def _written(held: Any) -> tuple[Any, dict[str, Any]]:
    """Return a value as JSON, and the arrays of the records in it."""
    if is_dataclass(held):
        return record(held)
    if isinstance(held, np.ndarray):
        return held.tolist(), {}
    if not isinstance(held, (Mapping, tuple, list)):
        return held, {}
    entries = held.items() if isinstance(held, Mapping) else enumerate(held)
    parts = {key: _written(one) for key, one in entries}
    arrays = {f"{k}.{n}": a for k, (_, inside) in parts.items() for n, a in inside.items()}
    content = {key: one for key, (one, _) in parts.items()}
    return content if isinstance(held, Mapping) else [*content.values()], arrays


def _saved_fields(kind: Any) -> list[Any]:
    """Return the fields that a file holds; a cache is no part of the value."""
    return [one for one in fields(kind) if one.init and not one.metadata.get("unsaved")]


def _dtype(hint: Any) -> str | None:
    """Return the stored type of an array; None for any floating-point type."""
    name = hint.__name__.partition("[")[0]
    return None if name == "Float" and hint.array_type is not np.ndarray else TYPES[name]


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
