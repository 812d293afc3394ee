"""Read while others write: the old value or the new one, never a mix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from laplace_metric._utils.names import utf8_path
from laplace_metric.errors import FileFormatError
from laplace_metric.io._disk import (
    POSTERIOR,
    SEAL,
    FileKind,
    head_of,
    only_regular,
    sealed,
    sha256_of,
)
from laplace_metric.io._hidden import current, current_bytes

if TYPE_CHECKING:
    from torch import Tensor

Loaded = TypeVar("Loaded")
READS = 1000
"""Tries to read next to a writer that never rests."""


def settled(paths: Sequence[Path], load: Callable[[], Loaded]) -> Loaded:
    """Call ``load`` for the values of these JSON until none of them was replaced meanwhile.

    One value that could be loaded is whole, whatever has replaced it since.

    Raises
    ------
    FileFormatError
        As ``load`` raises it, if no JSON was replaced meanwhile.
    OSError
        The same.
    """
    for _ in range(READS):
        with ExitStack() as stack:
            checks = [stack.enter_context(_stamped(path)) for path in paths]
            try:
                value = load()
            except (FileFormatError, OSError):
                if all(unchanged() for unchanged in checks):
                    raise
                continue
            if len(paths) == 1 or all(unchanged() for unchanged in checks):
                return value
    return load()


@contextmanager
def _stamped(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function: whether the JSON that counts for ``path`` is the same file as now."""
    with ExitStack() as stack:
        if os.name != "nt":  # held open, its number is not given to another file
            with suppress(OSError):
                stack.enter_context(open(current(path), "rb", opener=only_regular))
        before = _stamp(path)
        yield lambda: _stamp(path) == before


def _stamp(path: Path) -> tuple[int, ...] | None:
    for place in (current(path), path):  # it may have moved in between
        with suppress(OSError):
            status = place.stat()
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None


# Read a value: its JSON, then the files that it names, each checked against its hash.


MALFORMED = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a field of a wrong type or size makes a loader raise."""
JSON_BYTES = 2**30
"""A larger JSON is none of ours."""


def read(
    folder: Path, kind: FileKind = POSTERIOR, *, mapped: bool = False, verify: bool | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON content and the tensors of what ``write`` wrote.

    ``mapped`` leaves the tensors on disk until they are used; without ``verify``, only their header
    is hashed then. While a writer replaces it, this is the old value or the new one.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    whole = not mapped if verify is None else verify
    return settled([folder / kind.index], lambda: _read(folder, kind, mapped, whole))


def _read(
    folder: Path, kind: FileKind, mapped: bool, whole: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors.torch import load_file

    content = read_index(folder, kind)
    path = _checked(folder, kind, content, whole=whole)
    try:
        with utf8_path(path) as opened:
            tensors = load_file(opened)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def _checked(folder: Path, kind: FileKind, content: dict[str, Any], *, whole: bool) -> Path:
    """Return the place of the tensors, whose header (``whole``: all of it) is as it was written."""
    name = content.get("tensors")
    if not isinstance(name, str) or not kind.owns(name):
        raise FileFormatError(
            f"{folder / kind.index} is damaged: tensors={name!r:.60} is not a file name of ours."
        )
    path = folder / name
    try:
        damaged = head_of(path) != content.get("heads", {}).get(name)
        damaged = damaged or (whole and sha256_of(path) != content.get("sha256"))
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except (AttributeError, TypeError) as error:
        raise FileFormatError(f"{folder / kind.index} is damaged: {error!r}.") from error
    if damaged:
        raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
    return path


def read_index(folder: Path, kind: FileKind) -> dict[str, Any]:
    """The JSON of what ``write`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    path = folder / kind.index
    try:
        content = json.loads(current_bytes(path, JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileFormatError(
            f"{folder} holds no {kind.index}, so it is not {kind.title}."
        ) from error
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    if type(content.get("version")) is not int or content["version"] != kind.version:
        raise FileFormatError(
            f"{path} has version {content.get('version')!r:.60}, this package reads "
            f"{kind.version}: upgrade laplace-metric, or fit again."
        )
    _check_seal(path, content)
    return content


def _check_seal(path: Path, content: dict[str, Any]) -> None:
    try:
        intact = sealed(content)[SEAL] == content.get(SEAL)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise FileFormatError(
            f"{path} is damaged: its content does not have the sha256 that it names."
        )


def difference(saved: Any, current: Any) -> str | None:
    """Name the first difference of two JSON values, in words; None where they are the same.

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
