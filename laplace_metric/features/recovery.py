"""Reopening a spool: first everything is verified, only then is anything cut off."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from laplace_metric.errors import FileFormatError
from laplace_metric.features.checks import BLOCK_BYTES
from laplace_metric.features.disk import FEATURES, LABELS
from laplace_metric.features.manifest import (
    LOG,
    REMEDY,
    SPOOL,
    Log,
    check_size,
    damaged,
    read_manifest,
)
from laplace_metric.features.protocol import Like
from laplace_metric.features.raw import RawFile, fill


@dataclass(frozen=True)
class Recovered:
    """A folder as of its last commit: its log, width and types, and whether it is complete."""

    log: Log
    like: Like | None
    complete: bool

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes that count, by file name."""
        data = {FEATURES: 0, LABELS: 0}
        if self.like is not None:
            for name, rows in zip(data, self.like, strict=True):
                data[name] = self.log.rows * _file(Path(name), rows).row_bytes
        return {LOG: self.log.size, **data}


def recover(folder: Path) -> Recovered:
    """What is committed in a folder, after one sequential reading of all of it.

    Raises
    ------
    FileFormatError
        If a file is missing, shorter than committed, altered, foreign or newer.
    """
    manifest = read_manifest(folder)
    try:
        return _recover(folder, manifest)
    except OSError as error:
        path = error.filename or folder
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from error


def cut(folder: Path, sizes: dict[str, int]) -> None:
    """Remove what is behind the given sizes, and manifests that were not finished."""
    for name, size in sizes.items():
        if (folder / name).stat().st_size > size:
            os.truncate(folder / name, size)
    for left_over in folder.glob(f".{SPOOL.index}.*"):
        left_over.unlink(missing_ok=True)


def _recover(folder: Path, manifest: dict[str, Any]) -> Recovered:
    log, commits = Log.read(folder / LOG, manifest["log"]["bytes"], manifest["log"]["sha256"])
    found = Recovered(log, _like(manifest["like"]), manifest["complete"])
    for name, size in found.sizes.items():
        check_size(folder / name, size)
    if found.like is not None:
        features, labels = found.like
        _verify(_file(folder / FEATURES, features), [(c.rows, c.features) for c in commits])
        _verify(_file(folder / LABELS, labels), [(c.rows, c.labels) for c in commits])
    return found


def _like(content: dict[str, Any] | None) -> Like | None:
    if content is None:
        return None
    features, labels = (
        torch.empty(0, *content[name]["shape"], dtype=getattr(torch, content[name]["dtype"]))
        for name in ("features", "labels")
    )
    return features, labels


def _file(path: Path, like: torch.Tensor) -> RawFile:
    return RawFile(path, like.dtype, tuple(like.shape[1:]))


def _verify(file: RawFile, commits: Iterable[tuple[int, int]]) -> None:
    """Compare the rows of each commit with their CRC-32."""
    start, buffer = 0, memoryview(bytearray(BLOCK_BYTES))
    with FileIO(file.path) as handle:
        for rows, expected in commits:
            if _crc32(handle, file, rows * file.row_bytes, buffer) != expected:
                reason = f"rows {start} to {start + rows} are not those that were committed"
                raise damaged(file.path, reason)
            start += rows


def _crc32(handle: FileIO, file: RawFile, size: int, buffer: memoryview) -> int:
    value = 0
    while size:
        part = buffer[: min(size, len(buffer))]
        fill(handle, part, file.path)
        value, size = crc32(part, value), size - len(part)
    return value
