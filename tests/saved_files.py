"""Files that were saved, with values that somebody changed and hashes that match again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laplace_metric import io as files
from laplace_metric.io import Kind, Part
from laplace_metric.io._container import NO_HASH, _with_hash


def parts_of(path: Path) -> dict[str, Part]:
    """Every part of a file, with arrays that may be changed."""
    saved = files.SavedFile(path)
    parts = {}
    for name, whole in header_of(path)["content"].items():
        kind = Kind(whole["kind"], "a value", whole["version"])
        part = saved.part(kind, name)
        parts[name] = Part(kind, part.content, dict(part.arrays))
    return parts


def header_of(path: Path) -> dict[str, Any]:
    """The metadata of a file, with its content parsed; and the table of its arrays."""
    data = path.read_bytes()
    table = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = table.pop("__metadata__")
    return {**metadata, "content": json.loads(metadata["content"]), "table": table}


def rewrite(path: Path, name: str, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change content and arrays of a part in place, and save the file again."""
    parts = parts_of(path)
    change(parts[name].content, parts[name].arrays)
    files.write(path, parts)


def edit(path: Path, name: str, **changes: Any) -> None:
    """Set values of the content of a part."""
    rewrite(path, name, lambda content, _: content.update(changes))


def of_version(path: Path, name: str, version: int) -> None:
    """Let a part have another version."""
    parts = parts_of(path)
    old = parts[name]
    kind = Kind(old.kind.name, old.kind.title, version)
    files.write(path, {**parts, name: Part(kind, old.content, old.arrays)})


def flip(path: Path, array: str) -> None:
    """Flip the bits of the first byte of an array, such as "index/mean"."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[begin + header_of(path)["table"][array]["data_offsets"][0]] ^= 255
    path.write_bytes(data)


def put(path: Path, part: Part) -> None:
    """Let a file have this part in place of the one of its kind."""
    files.write(path, {**parts_of(path), part.kind.name: part})


def put_content(path: Path, text: str) -> None:
    """Let the content of a file be this text, with a header whose hash matches."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    table["__metadata__"] |= {"content": text, "sha256": NO_HASH.decode()}
    header = json.dumps(table, separators=(",", ":")).encode()
    header = with_hash(header + b" " * (-len(header) % 8))
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def with_hash(header: bytes) -> bytes:
    """A header with its own hash."""
    blank = _with_hash(header, NO_HASH)
    return _with_hash(blank, hashlib.sha256(blank).hexdigest().encode())
