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

    def expect(self, values: dict[str, Any], field: str, *words: object) -> None:
        """Raise unless a field of a finished run has these values."""
        found = self.read(*words).get(field, {})
        other = {key: found.get(key) for key, value in values.items() if found.get(key) != value}
        if other or (field == "settings" and found != values):
            raise InputError(
                f"{self.folder} holds {plain(*words)}.json with {field} {other or found}, not "
                f"{ {key: values.get(key) for key in other} or values }. Delete it, or use another "
                "--cache."
            )

    def starting_with(self, *words: object) -> Iterator[dict[str, Any]]:
        """Every record whose name starts so, by name."""
        for path in sorted(self.folder.glob(f"{plain(*words)}--*.json")):
            yield read_record(path.stem, self.folder)
