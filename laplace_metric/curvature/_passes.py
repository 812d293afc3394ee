"""The three passes of a fit: class sums of directions, terms of points, tiles of class sums.

    ClassSumsPass    n_c and s_c [C, Z]: what pair weights by class need
    PointsPass       2 sum_i J_i^T T_i J_i / r_i^2, and the pairs that must be looked at one by one
    ClassesPass      a tile of G_c = sum_{i in c} J^_i, for the cross blocks of pairs by class

        sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G = sum_c G_c

Only complete G_c may be multiplied, so G_c is what is merged; it is dropped when its products are
taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import torch
from torch import Tensor

from laplace_metric.curvature._margin import PairWeights
from laplace_metric.curvature._pass import (
    Pass,
    check_same_directions,
    check_same_points,
    probe_direction,
)
from laplace_metric.curvature._statistics import UNNAMED, ClassSums, Statistics, add_terms
from laplace_metric.curvature._terms import CurvatureTerm, Tile
from laplace_metric.models._rows import Block, FeatureSource
from laplace_metric.models._store import BLOCK_BYTES, block_rows

CHUNK_BYTES = 16 * 2**20
"""Memory of the tiles of all classes of one pass."""


@dataclass(frozen=True)
class ClassSumsPass(Pass):
    """n_c, and for arccos s_c [C, Z]. Features are read only where directions are summed."""

    name = "class sums"

    def inputs(self) -> list[Tensor]:
        """None: this is the first pass."""
        return []

    def start(self, source: FeatureSource) -> Statistics:
        """No points yet; without directions, the counts of all of them."""
        if not self.geometry.curved_loss:
            return Statistics(UNNAMED, ClassSums.of(source.labels))
        return Statistics(UNNAMED, ClassSums.zeros(source.classes, self.head.n_outputs))

    def blocks(self, source: FeatureSource) -> Iterator[Block]:
        """All points, or none where labels are enough."""
        return source.blocks() if self.geometry.curved_loss else iter(())

    def add(self, so_far: Statistics, block: Block) -> None:
        """``s_c += sum_{i in c} u_i``."""
        so_far.by_class.add_(block.labels, self.points(block).directions)

    def count(self, so_far: Statistics, block: Block) -> None:
        """Counted already: this pass is what later ones are compared with."""


@dataclass(frozen=True)
class PointsPass(Pass):
    """A curvature term over the points, given the weights of their pairs.

    Parameters
    ----------
    term : CurvatureTerm
        What is summed.
    pair_weights : tuple of tuples of PairWeights
        w_i and m_i of each kind of pairs; those of one tuple add up, each tuple has its totals.
    whole : ClassSums
        Of the first pass.
    """

    term: CurvatureTerm
    pair_weights: tuple[tuple[PairWeights, ...], ...]
    class_sums: ClassSums

    name = "points"

    def inputs(self) -> list[Tensor]:
        """Class sums, and what term and weights depend on."""
        of_weights = [t for kind in chain.from_iterable(self.pair_weights) for t in kind.tensors()]
        return [*self.class_sums.tensors, *self.term.inputs, *of_weights]

    def shared(self) -> list[Tensor]:
        """Return the tensors that the term depends on, such as an eigenbasis."""
        return self.term.inputs

    @property
    def classes(self) -> Tensor:
        """Classes of the first pass [C]."""
        return self.class_sums.classes

    def settings(self) -> dict[str, Any]:
        """Kind of term and of weights."""
        kinds = [[str(kind) for kind in kinds] for kinds in self.pair_weights]
        return {"term": type(self.term).__name__, "pair_weights": kinds}

    def start(self, source: FeatureSource) -> Statistics:
        """Zero totals for each tuple of weights."""
        for kind in chain.from_iterable(self.pair_weights):
            kind.prepare()
        counts = ClassSums.zeros(self.class_sums.classes, int(self._probed))
        totals = tuple(total for _ in self.pair_weights for total in self.term.zeros())
        return Statistics(UNNAMED, counts, totals).to(source.device)

    def add(self, so_far: Statistics, block: Block) -> None:
        """``2 sum_i J_i^T T_i J_i / r_i^2`` of the block, and its pairs."""
        points = self.points(block)
        for kinds, totals in zip(self.pair_weights, self.split(so_far.totals), strict=True):
            sums = [kind.sums(points, block.labels) for kind in kinds]
            w, m = sums[0] if len(sums) == 1 else (reduce(add, s) for s in zip(*sums, strict=True))
            blocks = self.geometry.point_blocks(points.directions, w, m)
            add_terms(totals, self.term.points(points, blocks))
            for kind in kinds:
                for columns, y in kind.pairs(points, block.labels):
                    add_terms(totals, self.term.pairs(points, columns, y))

    def count(self, so_far: Statistics, block: Block) -> None:
        """Points by class and, where the first pass summed directions, ``sum_i <u_i, r>``."""
        if not self._probed:
            super().count(so_far, block)
            return
        u = self.points(block).directions
        so_far.by_class.add_(block.labels, u @ probe_direction(u)[:, None])

    def split(self, totals: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """The totals of each tuple of weights."""
        step = len(totals) // len(self.pair_weights)
        return [totals[i : i + step] for i in range(0, len(totals), step)]

    def audit(self, merged: Statistics) -> None:
        """The same number of points of each class, in the same directions."""
        check_same_points(merged.by_class, self.class_sums)
        if self._probed:
            eps = torch.finfo(self.head.parameters.dtype).eps
            check_same_directions(merged.by_class, self.class_sums, eps)

    @property
    def _probed(self) -> bool:
        return self.geometry.curved_loss


@dataclass(frozen=True)
class ClassesPass(Pass):
    """A tile of G_c for the classes of ``class_sums`` [c], some of all; reads their points."""

    term: CurvatureTerm
    tile: Tile
    class_sums: ClassSums

    name = "classes"

    def inputs(self) -> list[Tensor]:
        """Class sums, and what the term depends on."""
        return [*self.class_sums.tensors, *self.term.inputs]

    def shared(self) -> list[Tensor]:
        """Return the tensors that the term depends on."""
        return self.term.inputs

    @property
    def classes(self) -> Tensor:
        """Classes of this pass [c]."""
        return self.class_sums.classes

    def settings(self) -> dict[str, Any]:
        """Kind of term, and which tile."""
        return {"term": type(self.term).__name__, "tile": self.tile}

    def start(self, source: FeatureSource) -> Statistics:
        """``G_c = 0`` [c, *tile]."""
        shape = (len(self.class_sums.classes), *self.tile.shape)
        sums = torch.zeros(shape, dtype=torch.float64, device=source.device)
        return Statistics(UNNAMED, ClassSums.zeros(self.class_sums.classes, 0), (sums,))

    def blocks(self, source: FeatureSource) -> Iterator[Block]:
        """The points class by class."""
        n_rows, n_columns = self.tile.n_bytes // (8 * self.tile.shape[-1]), self.tile.shape[-1]
        rows = block_rows(max(n_rows, n_columns), 8, BLOCK_BYTES)
        start = 0
        for label in self.class_sums.classes.tolist():
            for index in source.members(label).split(rows):
                if len(index):
                    labels = torch.full_like(index, label, device=source.device)
                    yield Block(start, source.rows(index), labels)
                    start += len(index)

    def add(self, so_far: Statistics, block: Block) -> None:
        """``G_c += sum_i J^_i``: the points of a block have one class."""
        position = self.class_sums.position(block.labels[:1])
        tile_sum = self.term.class_sum(self.tile, self.points(block))
        so_far.totals[0].index_add_(0, position, tile_sum[None])

    def audit(self, merged: Statistics) -> None:
        """The same number of points of each class."""
        check_same_points(merged.by_class, self.class_sums)

    def finish(self, merged: Statistics) -> Statistics:
        """Totals: the products of these G_c, one for each total of the term, then their sum."""
        (sums,) = merged.totals
        products = self.term.zeros()
        add_terms(products, self.term.classes(self.tile, sums))
        done = Statistics(merged.task, merged.by_class, (*products, sums.sum(0)))
        return super().finish(done)


def class_chunks(sums: ClassSums, tile: Tile) -> Iterator[ClassSums]:
    """All classes in pieces whose tiles fit ``CHUNK_BYTES``."""
    step = max(1, CHUNK_BYTES // tile.n_bytes)
    for start in range(0, len(sums.classes), step):
        part = slice(start, start + step)
        yield ClassSums(sums.classes[part], sums.counts[part], sums.sums[part, :0])
