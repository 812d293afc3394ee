"""The first pass: counts, and for arccos the class sums of directions s_c [C, Z].

The pass for cross blocks: a slab of the class sums G_c of J^, of some classes.

    sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G = sum_c G_c

Only complete G_c may be multiplied, so G_c is what is merged; it is dropped when its products are
taken. Every pass reads the points of its own classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplace_metric.curvature._statistics import UNNAMED, ClassSums, Statistics
from laplace_metric.curvature.passes._checks import check_finite_sums, check_same_points
from laplace_metric.curvature.passes._pass import Pass
from laplace_metric.curvature.terms import CurvatureTerm, Tile, add_terms
from laplace_metric.models.features import BLOCK_BYTES, Block, FeatureSource, block_rows


@dataclass(frozen=True)
class ClassSumsPass(Pass):
    """Reads labels, and features only where directions are summed. O(N D Z)."""

    name = "class sums"

    def given(self) -> list[Tensor]:
        return []

    def start(self, source: FeatureSource) -> Statistics:
        if not self.geometry.curved_loss:
            return Statistics(UNNAMED, ClassSums.of(source.labels))
        return Statistics(UNNAMED, ClassSums.zeros(source.classes, self.head.n_outputs))

    def blocks(self, source: FeatureSource, start: int) -> Iterator[Block]:
        return super().blocks(source, start) if self.geometry.curved_loss else iter(())

    def add(self, so_far: Statistics, block: Block) -> None:
        so_far.by_class.add_(block.labels, self.points(block).directions)

    def finish(self, whole: Statistics) -> Statistics:
        check_finite_sums(whole)
        return whole


CHUNK_BYTES = 16 * 2**20
"""Memory of the slabs of all classes of one pass."""


@dataclass(frozen=True)
class ClassesPass(Pass):
    """A slab of G_c for the classes ``whole`` [c], which are some of all."""

    term: CurvatureTerm
    tile: Tile
    whole: ClassSums

    name = "classes"

    def given(self) -> list[Tensor]:
        return [*self.whole.tensors, *self.term.given]

    def shared(self) -> list[Tensor]:
        return self.term.given

    @property
    def classes(self) -> Tensor:
        return self.whole.classes

    def settings(self) -> dict[str, Any]:
        return {"summand": type(self.term).__name__, "slab": self.tile}

    def start(self, source: FeatureSource) -> Statistics:
        shape = (len(self.whole.classes), *self.tile.shape)
        sums = torch.zeros(shape, dtype=torch.float64, device=source.device)
        return Statistics(UNNAMED, ClassSums.zeros(self.whole.classes, 0), (sums,))

    def blocks(self, source: FeatureSource, start: int) -> Iterator[Block]:
        """The points class by class; ``start`` counts them in this order."""
        n_rows, n_columns = self.tile.n_bytes // (8 * self.tile.shape[-1]), self.tile.shape[-1]
        rows = block_rows(max(n_rows, n_columns), 8, BLOCK_BYTES)
        stop = 0
        for label in self.whole.classes.tolist():
            for index in source.members(label).split(rows):
                stop += len(index)
                if len(index) and stop > start:
                    labels = torch.full_like(index, label, device=source.device)
                    yield Block(stop - len(index), source.rows(index), labels)

    def add(self, so_far: Statistics, block: Block) -> None:
        so_far.by_class.add_(block.labels)
        position = so_far.by_class.position(block.labels[:1])
        tile_sum = self.term.class_sum(self.tile, self.points(block))
        so_far.totals[0].index_add_(0, position, tile_sum[None])

    def finish(self, whole: Statistics) -> Statistics:
        """Totals: the products of these G_c, one for each total of the summand, then their sum."""
        check_same_points(whole.by_class, self.whole)
        (sums,) = whole.totals
        products = self.term.zeros()
        add_terms(products, self.term.classes(self.tile, sums))
        done = Statistics(whole.task, whole.by_class, (*products, sums.sum(0)))
        check_finite_sums(done)
        return done


def class_chunks(sums: ClassSums, tile: Tile) -> Iterator[ClassSums]:
    """All classes in pieces whose slabs fit ``CHUNK_BYTES``."""
    step = max(1, CHUNK_BYTES // tile.n_bytes)
    for start in range(0, len(sums.classes), step):
        part = slice(start, start + step)
        yield ClassSums(sums.classes[part], sums.counts[part], sums.sums[part, :0])
