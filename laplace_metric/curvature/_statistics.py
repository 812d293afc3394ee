"""Statistics: the sums that a pass has collected over a set of points.

``a + b`` of the statistics of two disjoint sets of points are those of their union, in any order
and for any split (up to float64 rounding). Everything is accumulated in float64.

Totals of a pass, float64 sums over points and pairs, and the terms that are added to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import digest

UNNAMED = ""
"""The task of statistics that stay in their process."""
TOTAL = "total."
"""Begins the names of the arrays of totals in a file."""


@dataclass(frozen=True)
class Statistics:
    """Sums of one task over a set of points.

    Parameters
    ----------
    task : str
        Fingerprint of what is summed; only statistics of one task add up.
    by_class : ClassSums
        Number of points of each class that were read; in the first pass of a fit also their sums.
    totals : tuple of Tensor
        Float64 sums over all points; their shapes belong to the task.

    Examples
    --------
    >>> one = ClassSums.of(torch.tensor([3]))
    >>> a, b = (Statistics("a task", one, (torch.ones(2).double(),)) for _ in range(2))
    >>> (a + b).n_points, (a + b).totals
    (2, (tensor([2., 2.], dtype=torch.float64),))
    """

    KIND: ClassVar[files.Kind] = files.Kind("statistics", "saved statistics", 2)

    task: str
    by_class: ClassSums
    totals: tuple[Tensor, ...] = ()

    def __add__(self, other: Statistics) -> Statistics:
        if self.task != other.task:
            raise InputError(
                f"statistics of two tasks, {self.task[:12]} and {other.task[:12]}, do not add up: "
                "collect both from the same task (same head, settings and earlier results)."
            )
        totals = tuple(a + b for a, b in zip(self.totals, other.totals, strict=True))
        return Statistics(self.task, self.by_class + other.by_class, totals)

    @property
    def n_points(self) -> int:
        """Number of points that were read."""
        return self.by_class.n_points

    @property
    def sha256(self) -> str:
        """Hash of the content: the same values, the same hash."""
        return digest(self.task, (*self.by_class.tensors, *self.totals))

    def to(self, device: torch.device) -> Statistics:
        """Return the same statistics on another device."""
        totals = tuple(t.to(device) for t in self.totals)
        return Statistics(self.task, self.by_class.to(device), totals)

    def save(self, path: str | Path) -> None:
        """Write one file, such as "statistics.safetensors", which is replaced in one step."""
        tensors = files.record(self.by_class)[1]
        tensors |= {f"{TOTAL}{i}": total for i, total in enumerate(self.totals)}
        content = {"task": self.task, "n_points": self.n_points, "content": self.sha256}
        files.write(Path(path), files.Part(self.KIND, content, tensors))

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """Read what ``save`` wrote.

        Raises
        ------
        FileFormatError
            If the file holds no statistics, or damaged or newer ones.
        """
        saved = files.SavedFile(Path(path))
        with saved.checked():
            part = saved.part(cls.KIND)
            content = files.Fields(part.content, "statistics")
            by_class = files.restored(ClassSums, files.Fields({}, "statistics"), part.arrays)
            totals = files.below(TOTAL, part.arrays)
            each = tuple(totals[str(i)] for i in range(len(totals)))
            statistics = cls(content.text("task"), by_class, each)
            if statistics.sha256 != content.text("content"):
                raise FileFormatError(f"{path} is damaged: its content is not what was saved.")
        return statistics


Terms = list["Tensor | None"]
"""One summand for each total; None if there is nothing to add."""


def add_terms(totals: Iterable[Tensor], terms: Terms, scale: float = 1.0) -> None:
    """Add ``scale * terms`` to the totals, in place."""
    for total, term in zip(totals, terms, strict=True):
        if term is not None:
            total.add_(term, alpha=scale)
