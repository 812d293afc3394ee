"""Finished work in a folder: one JSON a piece, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import read_record, write_record
from laplace_metric.errors import InputError


def plain(*words: object) -> str:
    """Words as a file name.

    Examples
    --------
    >>> plain("lam", "k-nn distance", 0)
    'lam--k-nn_distance--0'
    """
    return "--".join(
        "".join(c if c.isalnum() or c == "-" else "_" for c in str(word)) for word in words
    )


@dataclass(frozen=True)
class Store:
    """A folder of JSON records, looked up by the words of their names."""

    folder: Path

    def has(self, *words: object) -> bool:
        """Whether this piece of work is done."""
        return (self.folder / f"{plain(*words)}.json").is_file()

    def read(self, *words: object) -> dict[str, Any]:
        """A finished piece."""
        return read_record(plain(*words), self.folder)

    def write(self, content: dict[str, Any], *words: object) -> None:
        """Note a piece as finished."""
        write_record(plain(*words), content, self.folder)

    def expect(self, settings: dict[str, Any], *words: object) -> None:
        """Raise unless a finished run has these settings, as far as JSON can tell."""
        found = self.read(*words)["settings"]
        if found != settings:
            raise InputError(
                f"{self.folder} holds {plain(*words)}.json with settings {found}, but {settings} "
                "are chosen now. Delete it, or use another --cache."
            )

    def starting_with(self, *words: object) -> Iterator[dict[str, Any]]:
        """Every record whose name starts so, by name."""
        for path in sorted(self.folder.glob(f"{plain(*words)}--*.json")):
            yield read_record(path.stem, self.folder)
