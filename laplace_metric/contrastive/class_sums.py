"""Class sums: what the all-pairs curvature keeps of the data, as a value that adds up.

``a + b`` of the sums of two disjoint sets of points is the sums of their union, in any order and
for any split (up to float64 rounding), also when a class lives in one of them only. Everything is
accumulated in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplace_metric.errors import LabelError


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
    def of(cls, labels: Tensor, vectors: Tensor | None = None) -> ClassSums:
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
    def zeros(cls, classes: Tensor, n_values: int) -> ClassSums:
        """No points yet of ``classes`` [C], ascending."""
        counts = torch.zeros_like(classes)
        sums = torch.zeros(len(classes), n_values, dtype=torch.float64, device=classes.device)
        return cls(classes, counts, sums)

    def add_(self, labels: Tensor, vectors: Tensor | None = None) -> None:
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

    def position(self, labels: Tensor) -> Tensor:
        """Positions of labels [n] in ``classes``; of an unknown label, a neighbour's."""
        return torch.searchsorted(self.classes, labels.contiguous()).clamp_max(
            len(self.classes) - 1
        )

    def index(self, labels: Tensor) -> Tensor:
        """Positions of labels [n] in ``classes``.

        Raises
        ------
        LabelError
            For a label that these sums have not seen.
        """
        position = self.position(labels)
        if not torch.equal(self.classes[position], labels):
            unseen = labels[self.classes[position] != labels].unique().tolist()
            raise LabelError(f"labels {unseen[:5]} do not occur in the class sums.")
        return position
