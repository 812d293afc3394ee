"""Read a value: its JSON, then the files that it names, each checked against its hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from laplace_metric._utils.files._current import current_bytes
from laplace_metric._utils.files._hashes import SEAL, head_of, sealed, sha256_of
from laplace_metric._utils.files._kinds import POSTERIOR, FileKind
from laplace_metric._utils.files._settled import settled
from laplace_metric._utils.names import utf8_path
from laplace_metric.errors import FileFormatError

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
    is hashed then. Beside a writer, this is the old value or the new one.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    whole = not mapped if verify is None else verify
    return settled(folder, kind, lambda: _read(folder, kind, mapped, whole))


def _read(
    folder: Path, kind: FileKind, mapped: bool, whole: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    content = read_index(folder, kind)
    path = _checked(folder, kind, content, "tensors", "sha256", whole=whole)
    try:
        with utf8_path(path) as opened:
            tensors = load_file(opened)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def foreign_file(
    folder: Path, content: dict[str, Any], kind: FileKind, *, hashed: bool = True
) -> Path:
    """Where the file of a foreign format lies, checked as ``read`` checks the tensors."""
    return _checked(folder, kind, content, "foreign", "foreign_sha256", whole=hashed)


def _checked(
    folder: Path, kind: FileKind, content: dict[str, Any], key: str, sha_key: str, *, whole: bool
) -> Path:
    name = content.get(key)
    if not isinstance(name, str) or not kind.owns(name):
        raise FileFormatError(
            f"{folder / kind.index} is damaged: {key}={name!r:.60} is not a file name of ours."
        )
    path = folder / name
    try:
        damaged = head_of(path) != content.get("heads", {}).get(name)
        damaged = damaged or (whole and sha256_of(path) != content.get(sha_key))
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
