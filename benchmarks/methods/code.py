"""Hash of the code of one method: whether its measurements are of the present code."""

from __future__ import annotations

from benchmarks.definitions import row
from benchmarks.methods.table import METHODS


def code_of(method: str) -> str:
    """Return the hash of a method's row, then those of the methods that it rests on.

    Those are the one whose network it is put on, and the one whose settings it takes.
    """
    entry = METHODS[method]
    shared = entry.space if isinstance(entry.space, str) else None
    return " ".join(row(name) for name in (method, entry.base, shared) if name)
