"""Turn class names into whole numbers.

A class is known by its name alone, wherever it is read:

    code(name) = first 63 bits of sha256(name)

so that batches, processes and a fit that goes on after a kill agree without a table of names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.errors import LabelError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._rows_in_errors import named_rows, row_of_call


def names_of(labels: Any) -> list[str] | None:
    """Return class names as a list; None where labels are anything else.

    Examples
    --------
    >>> names_of(np.array(["cat", "dog"])), names_of([0, 1])
    (['cat', 'dog'], None)
    """
    labels = plain(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "UO":
        labels = labels.tolist()
    if not isinstance(labels, (list, tuple)) or not labels:
        return None
    return [str(name) for name in labels] if all(isinstance(x, str) for x in labels) else None


def check_names(name: str, names: Sequence[str]) -> None:
    """Refuse a class without a name: a blank cell of a table is a label that is missing.

    Raises
    ------
    LabelError
        Names the rows.
    """
    if empty := [row for row, text in enumerate(names) if not text.strip()]:
        raise LabelError(
            f"{name} is an empty text in {named_rows(empty, len(names))}: leave "
            "these items out, or name their class."
        )


def mixed_kinds(labels: Any) -> str:
    """Return what a list of strings and other entries is mixed of; empty if it is not mixed.

    Examples
    --------
    >>> mixed_kinds(["cat", 3]), mixed_kinds([1, 2])
    ("mixed, 'cat' (str) in row 0 and 3 (int) in row 1", '')
    """
    labels = plain(labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, (list, tuple)):
        return ""
    texts = [isinstance(label, str) for label in labels]
    if all(texts) or not any(texts):
        return ""
    rows = sorted((texts.index(True), texts.index(False)))
    return "mixed, " + " and ".join(
        f"{labels[row]!r:.40} ({type(labels[row]).__name__}) in row {row_of_call(row)}"
        for row in rows
    )


def check_not_mixed(name: str, labels: Any) -> None:
    """Refuse labels of which some are strings and others not.

    Raises
    ------
    LabelError
        Names the first row of each.
    """
    if mixed := mixed_kinds(labels):
        raise LabelError(f"{name} are {mixed}: pass whole numbers, or strings, for all items.")


def class_codes(names: Sequence[str]) -> Int[Tensor, " N"]:
    """Return a whole number [N] for each class name, the same in every process.

    Two of a million names share a number with a probability of 5e-8.

    Examples
    --------
    >>> codes = class_codes(["cat", "dog", "cat"])
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    digests = {
        name: hashlib.sha256(name.encode(errors="surrogatepass")).digest() for name in set(names)
    }
    codes = {name: int.from_bytes(digest[:8], "big") >> 1 for name, digest in digests.items()}
    return torch.tensor([codes[name] for name in names], dtype=torch.int64)


def note_names(known: dict[int, str], labels: Any, codes: Tensor, *, first: bool) -> None:
    """Keep which name a code stands for.

    Raises
    ------
    LabelError
        If some batches have names and others numbers, or two names one code.
    """
    names = names_of(labels)
    if not first and (names is None) != (not known):
        raise LabelError("some batches have class names, others numbers: pass one of the two.")
    for code, name in set(zip(codes.tolist(), names or [], strict=False)):
        if known.setdefault(code, name) != name:
            raise LabelError(f"classes {known[code]!r} and {name!r} share a code: rename one.")
