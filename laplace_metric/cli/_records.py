"""What is saved with a posterior: how inputs are read, and which data were fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch

from laplace_metric import io as files
from laplace_metric.cli._options import MOST_SIDE
from laplace_metric.cli._source import ARRAYS, IMAGES, TEXTS, ReadOptions
from laplace_metric.errors import FileFormatError

Record = TypeVar("Record", bound="SavedRecord")
_READ_OPTIONS = {
    name: hint for name, hint in get_type_hints(ReadOptions).items() if name != "transform"
}
"""Types of the options that a file may hold: a function is none."""
_RANGES: dict[str, Callable[[Any], bool]] = {
    "size": lambda x: 0 < x <= MOST_SIDE,
    "channels": lambda x: x in (1, 3),
    "kind": lambda x: x in (IMAGES, TEXTS, ARRAYS),
    "holdout": lambda x: 0 < x < 1,
    "seed": lambda x: 0 <= x < 2**63,
    "read_options": lambda x: all(name in _READ_OPTIONS and _fits(name, x[name]) for name in x),
}
"""Values of a file that are allowed, beyond the type of their field; None where it may be."""


def _fits(name: str, value: Any, hint: Any = None) -> bool:
    """Return whether a value of a file is of the type and in the range of its field."""
    kind = hint or _READ_OPTIONS[name]
    if not isinstance(value, kind):
        return False
    if isinstance(value, bool):  # which Python takes for a whole number
        return kind is bool
    return value is None or _RANGES.get(name, lambda _: True)(value)


@dataclass(frozen=True, kw_only=True)
class SavedRecord:
    """Values that are saved in the file of what they describe; data of Python are not known.

    Parameters
    ----------
    data : str or None
        Path of the data that it was made of, as it was resolved. None: not known.
    holdout : float or None
        Share of the data that was left out, see ``split_rows``.
    seed : int
        Seed of that split. Default: 0.
    read_options : dict
        Fields of ``ReadOptions``: how the inputs are read.
    """

    KIND: ClassVar[files.Kind]

    data: str | None = None
    holdout: float | None = None
    seed: int = 0
    read_options: dict[str, Any] = field(default_factory=dict)

    def split(self, n: int) -> tuple[list[int], list[int], list[int]]:
        """Return rows of items that were taken, and of those to calibrate and to evaluate with."""
        return split_rows(n, self.holdout, self.seed)

    def part(self) -> files.Part:
        """Return it as a part of a file."""
        return files.Part(self.KIND, asdict(self))

    @classmethod
    def read(cls: type[Record], saved: files.SavedFile) -> Record:
        """Read what ``part`` returned.

        Raises
        ------
        FileFormatError
            If the file has none, or it is damaged.
        """
        content, path = saved.part(cls.KIND).content, saved.path
        hints = get_type_hints(cls) | {"read_options": dict}
        names = [each.name for each in fields(cls)]
        for name in names:
            if name not in content:
                raise FileFormatError(f"{path} is damaged: {cls.KIND.name} has no {name!r}.")
            if not _fits(name, content[name], hints[name]):
                raise FileFormatError(
                    f"{path} is damaged: {cls.KIND.name}.{name} is {content[name]!r:.60}."
                )
        return cls(**{name: content[name] for name in names})


def split_rows(n: int, holdout: float | None, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Return rows of items to fit and to index, to calibrate with, and to evaluate with.

    Examples
    --------
    >>> parts = split_rows(8, 0.5, 0)
    >>> [len(rows) for rows in parts], sorted(sum(parts, []))
    ([4, 2, 2], [0, 1, 2, 3, 4, 5, 6, 7])
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    n_held_out = round(n * (holdout or 0.0))
    first, second = n - n_held_out, n - n_held_out // 2
    return sorted(order[:first]), sorted(order[first:second]), sorted(order[second:])
