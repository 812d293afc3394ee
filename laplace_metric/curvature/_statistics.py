"""Class sums: what the all-pairs curvature keeps of the data, as a value that adds up.

``a + b`` of the sums of two disjoint sets of points is the sums of their union, in any order and
for any split (up to float64 rounding), also when a class lives in one of them only. Everything is
accumulated in float64.

Statistics: what one reading of some points contributes to a fit, as a value that adds up.

``a + b`` of the statistics of two disjoint sets of points are those of their union, in any order
and for any split (up to float64 rounding), also when a class lives in one of them only. Everything
is accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import digest


@dataclass(frozen=True)
class ClassSums:
    """Counts and sums of vectors over the points of each class.

    Parameters
    ----------
    classes : Tensor [C] int64
        The labels that occur, ascending.
    counts : Tensor [C] int64
        n_c.
    sums : Tensor [C, V] float64
        s_c; V = 0 where only counts are needed.

    Examples
    --------
    >>> left = ClassSums.of(torch.tensor([7, 7]), torch.ones(2, 1))
    >>> right = ClassSums.of(torch.tensor([3]), torch.ones(1, 1))
    >>> (left + right).counts
    tensor([1, 2])
    """

    classes: Tensor
    counts: Tensor
    sums: Tensor

    @classmethod
    def of(
        cls, labels: Int[Tensor, " N"], vectors: Float[Tensor, "N V"] | None = None
    ) -> ClassSums:
        """Sums of ``vectors`` [N, V] by ``labels`` [N]."""
        classes, position, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        if vectors is None:
            vectors = torch.empty(len(labels), 0, device=labels.device)
        sums = torch.zeros(
            len(classes), vectors.shape[1], dtype=torch.float64, device=labels.device
        )
        return cls(classes, counts, sums.index_add_(0, position, vectors.double()))

    def __add__(self, other: ClassSums) -> ClassSums:
        classes, position = torch.unique(
            torch.cat([self.classes, other.classes]), return_inverse=True
        )
        counts = torch.zeros_like(classes)
        sums = self.sums.new_zeros(len(classes), self.sums.shape[1])
        return ClassSums(
            classes,
            counts.index_add_(0, position, torch.cat([self.counts, other.counts])),
            sums.index_add_(0, position, torch.cat([self.sums, other.sums])),
        )

    @classmethod
    def zeros(cls, classes: Int[Tensor, " C"], n_values: int) -> ClassSums:
        """No points yet of ``classes`` [C], ascending."""
        counts = torch.zeros_like(classes)
        sums = torch.zeros(len(classes), n_values, dtype=torch.float64, device=classes.device)
        return cls(classes, counts, sums)

    def add_(self, labels: Int[Tensor, " n"], vectors: Float[Tensor, "n V"] | None = None) -> None:
        """Add points of known classes in place, without a look at a value (no device waits).

        A label that is not among the classes is counted for a neighbouring one.
        """
        position = self.position(labels)
        self.counts.index_add_(0, position, torch.ones_like(position))
        if vectors is not None:
            self.sums.index_add_(0, position, vectors.double())

    @property
    def n_points(self) -> int:
        """N."""
        return int(self.counts.sum())

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Classes, counts, sums."""
        return self.classes, self.counts, self.sums

    def to(self, device: torch.device) -> ClassSums:
        """The same on another device."""
        return ClassSums(*(t.to(device) for t in self.tensors))

    def position(self, labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Positions of labels [n] in ``classes``; of an unknown label, a neighbour's."""
        return torch.searchsorted(self.classes, labels.contiguous()).clamp_max(
            len(self.classes) - 1
        )


STRIP = 256
"""Rows of a symmetric product that are multiplied at once."""
UNNAMED = ""
"""The task of statistics that stay in their process."""


@dataclass(frozen=True)
class Statistics:
    """Sums over a set of points, of one task.

    Parameters
    ----------
    task : str
        Fingerprint of what is summed; only statistics of one task add up.
    by_class : ClassSums
        How many points of each class were read, and, of the first task of a fit, their sums.
    totals : tuple of Tensor
        Float64 sums over all points; their shapes belong to the task.

    Examples
    --------
    >>> one = ClassSums.of(torch.tensor([3]))
    >>> a, b = (Statistics("a task", one, (torch.ones(2).double(),)) for _ in range(2))
    >>> (a + b).n_points, (a + b).totals
    (2, (tensor([2., 2.], dtype=torch.float64),))
    """

    KIND: ClassVar[files.FileKind] = files.FileKind("statistics", "saved statistics", 1)

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
        """The same on another device."""
        totals = tuple(t.to(device) for t in self.totals)
        return Statistics(self.task, self.by_class.to(device), totals)

    def save(self, folder: str | Path) -> None:
        """Write to a folder: safetensors + JSON, atomic."""
        names = ("classes", "counts", "sums")
        tensors = dict(zip(names, self.by_class.tensors, strict=True))
        tensors |= {f"total.{i}": total for i, total in enumerate(self.totals)}
        content = {"task": self.task, "n_points": self.n_points, "content": self.sha256}
        files.write(Path(folder), content, tensors, self.KIND)

    @classmethod
    def load(cls, folder: str | Path) -> Statistics:
        """Read what ``save`` wrote.

        Raises
        ------
        FileFormatError
            If the folder holds no statistics, or damaged or newer ones.
        """
        content, tensors = files.read(Path(folder), cls.KIND)
        try:
            by_class = ClassSums(*(tensors.pop(name) for name in ("classes", "counts", "sums")))
            totals = tuple(tensors[f"total.{i}"] for i in range(len(tensors)))
            statistics = cls(content["task"], by_class, totals)
        except KeyError as error:
            raise FileFormatError(f"{folder} is damaged: it lacks {error}.") from error
        if statistics.sha256 != content.get("content"):
            raise FileFormatError(f"{folder} is damaged: its content is not what was saved.")
        return statistics


Terms = list["Tensor | None"]
"""One for each total; None where there is nothing to add."""


def add_terms(totals: Iterable[Tensor], terms: Terms, scale: float = 1.0) -> None:
    """``totals += scale * terms``, in place."""
    for total, term in zip(totals, terms, strict=True):
        if term is not None:
            total.add_(term, alpha=scale)


def upper_gram(x: Float[Tensor, "n A"], y: Float[Tensor, "n A"]) -> Float[Tensor, "A A"]:
    """``X^T Y`` from the diagonal on; what is below it is left out, or not, as it comes.

    Up to a half fewer multiplications than the whole product, in three quarters of its time.

    Examples
    --------
    >>> x = torch.ones(3, 2)
    >>> upper_gram(x, x)
    tensor([[3., 3.],
            [3., 3.]])
    """
    width = x.shape[1]
    if width <= STRIP:
        return x.mT @ y
    gram = x.new_zeros(width, width)
    for start in range(0, width, STRIP):
        rows = slice(start, start + STRIP)
        gram[rows, start:] = x[:, rows].mT @ y[:, start:]  # gradients may pass
    return gram


def mirrored(gram: Float[Tensor, "A A"]) -> Float[Tensor, "A A"]:
    """The symmetric matrix of which this is the upper triangle.

    Examples
    --------
    >>> mirrored(torch.tensor([[1.0, 2.0], [9.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return gram.triu() + gram.triu(1).mT
