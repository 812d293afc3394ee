"""Passes: each reads every point once and collects ``Statistics``.

    ClassSumsPass    n_c and s_c [C, Z]: what pair weights by class need
    PointsPass       2 sum_i J_i^T T_i J_i / r_i^2, and the pairs that must be computed one by one
    ClassesPass      a tile of G_c = sum_{i in c} J^_i, for the cross blocks of pairs by class

        sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G = sum_c G_c

Only complete G_c may be multiplied, so G_c is what is merged; it is dropped when its products are
taken.

A schedule: a fit as a sequence of passes, and how it is run in this process.

A schedule is a generator: it yields a pass, is sent the finished statistics of all points, and
returns the curvature. It does not know who reads the points, in how many places, and how the parts
are merged: ``execute`` reads one source in this process; ``distributed`` and ``scale`` read shards,
whose merged statistics are audited.

Checks that every pass read the same points, and that the sums are finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from operator import add, is_not
from typing import Any, TypeVar

import torch
from torch import Tensor

from laplace_metric._utils.blocks import CACHE_BYTES, LEAST_ROWS, blocks
from laplace_metric._utils.progress import tqdm
from laplace_metric.curvature._curvature_term import CurvatureTerm, Tile
from laplace_metric.curvature._loss import Geometry
from laplace_metric.curvature._statistics import UNNAMED, Statistics, add_terms
from laplace_metric.curvature.by_class import ClassSums, PairWeights, PointBlocks, Points
from laplace_metric.errors import InputError, NonFiniteError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.io import digest
from laplace_metric.models._blocks import Block, Kept
from laplace_metric.models._feature_store import FeatureStore

ROUNDINGS = 1_000
"""Number of rounding errors by which the direction of a point may differ from pass to pass."""


def probe_direction(like: Tensor) -> Tensor:
    """Return a fixed unit vector r [K] for ``like`` [n, K]: ``<u_i, r>`` identifies directions."""
    places = torch.arange(1, like.shape[1] + 1, dtype=torch.float64, device=like.device)
    r = places.mul_(2.4).cos_()
    return (r / r.norm()).to(like)


def check_same_directions(read: ClassSums, expected: ClassSums, eps: float) -> None:
    """Raise ``InputError`` unless ``sum_i <u_i, r>`` of each class is that of the first pass.

    Other points with the same labels are found here: another shard in the place of one, or a loader
    that yields something else.

    Raises
    ------
    InputError
    """
    gap = (read.sums[:, 0] - expected.sums @ probe_direction(expected.sums)).abs()
    off = gap > ROUNDINGS * eps * expected.counts
    if bool(off.any()):
        raise InputError(
            f"this pass read other points than the first one (of class "
            f"{int(expected.classes[off][0])}): merge the statistics of every shard once in each "
            "pass, and let the loader yield the same points each time."
        )


def check_same_points(read: ClassSums, expected: ClassSums) -> None:
    """Raise ``InputError`` unless a pass read as many points of each class as the first one.

    A shard that is left out or merged twice is found here.

    Raises
    ------
    InputError
    """
    if torch.equal(read.classes, expected.classes) and torch.equal(read.counts, expected.counts):
        return
    minus = ClassSums(expected.classes, -expected.counts, expected.sums[:, :0])
    both = ClassSums(read.classes, read.counts, read.sums[:, :0]) + minus
    index = int(both.counts.ne(0).nonzero()[0])
    raise InputError(
        f"this pass read {read.n_points} points and the first one {expected.n_points} (of class "
        f"{int(both.classes[index])} {int(both.counts[index]):+d}): merge the statistics of every "
        "shard once in each pass, and let the loader yield the same points each time."
    )


def check_finite_sums(merged: Statistics) -> None:
    """Raise an error unless every total is finite.

    Raises
    ------
    InputError
        If a total is NaN: an embedding has no direction.
    NonFiniteError
        If one overflowed.
    """
    for tensor in (merged.by_class.sums, *merged.totals):
        if not tensor.numel():
            continue
        low, high = tensor.aminmax()  # one reading; NaN propagates
        if bool(low.isnan()):
            raise InputError(
                "some embeddings are exactly zero and have no direction (or the model overflows): "
                "remove those inputs or use distance='euclidean' on a network without "
                "normalisation."
            )
        if not bool(low.isfinite() & high.isfinite()):
            raise NonFiniteError(
                "the curvature overflows: scale the features down or fit in float64."
            )


Callback = Callable[[int], Any]
"""Called with the number of points of every block that was read."""


@dataclass(frozen=True)
class Pass(ABC):
    """One reading of the points.

    Parameters
    ----------
    head : HeadJacobian
        Jacobian of the head.
    geometry : Geometry
        Distance, and the space it is measured in.
    class_sums : ClassSums or None
        Result of the first pass, or its part for the classes that are read; None in the first pass.
    term : CurvatureTerm or None
        Term whose totals are collected.
    """

    head: HeadJacobian
    geometry: Geometry
    class_sums: ClassSums | None = None
    term: CurvatureTerm | None = None

    name = ""
    """Kind of the pass: part of its fingerprint, and the title of its progress bar."""

    def inputs(self) -> list[Tensor]:
        """Return the results of earlier passes that this one depends on."""
        return [*(self.class_sums.tensors if self.class_sums else ()), *self.shared()]

    def shared(self) -> Sequence[Tensor]:
        """Return the tensors that were computed, not summed, and so could differ by machine."""
        return self.term.inputs if self.term else []

    @property
    def classes(self) -> Tensor | None:
        """Classes [C] whose points are counted, if they are known before reading."""
        return self.class_sums.classes if self.class_sums else None

    def settings(self) -> str:
        """Return the plain values that this pass depends on, as text."""
        return str(self.term)

    @cached_property
    def task(self) -> str:
        """Fingerprint of head, geometry, settings, and the results of earlier passes."""
        head = f"{self.head.signature}|{self.head.layouts}"
        described = f"{self.name}|{self.geometry}|{head}|{self.settings()}"
        return digest(described, [self.head.parameters, *self.head.constants, *self.inputs()])

    @abstractmethod
    def start(self, source: FeatureStore) -> Statistics:
        """Return the statistics of no point."""

    @abstractmethod
    def add(self, so_far: Statistics, block: Block) -> None:
        """Add the points of a block, in place; no value is read, so a GPU need not wait."""

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
        """Yield the blocks that are read."""
        return source.blocks()

    def read(self, source: FeatureStore, callback: Callback | None = None) -> Statistics:
        """Read a source; return statistics that name no task."""
        with torch.no_grad():
            so_far = self.start(source)
            for block in self.blocks(source):
                self.add(so_far, block)
                if callback is not None:
                    callback(len(block))
        return so_far

    def collect(self, source: FeatureStore, callback: Callback | None = None) -> Statistics:
        """Read one shard of the points; return statistics to merge with those of the others.

        Examples
        --------
        >>> from laplace_metric.curvature import ContrastiveLoss
        >>> from laplace_metric.curvature._all_pairs import curvature_passes
        >>> from laplace_metric.models._feature_store import FeatureStore
        >>> from laplace_metric.heads._linear import LinearJacobian
        >>> loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
        >>> first = next(curvature_passes(LinearJacobian(torch.eye(2)), loss, "diag"))
        >>> first.collect(FeatureStore.of(torch.eye(2), torch.tensor([0, 1]))).by_class.counts
        tensor([1, 1])
        """
        return replace(self.read(source, callback), task=self.task)

    def audit(self, merged: Statistics) -> None:
        """Raise ``InputError`` unless merged statistics are of the points of the first pass."""
        if self.class_sums is not None:
            check_same_points(merged.by_class, self.class_sums)

    def finish(self, merged: Statistics) -> Statistics:
        """Check the sums over all points; return what the schedule is sent.

        Raises
        ------
        InputError, NonFiniteError
            If a sum is NaN or infinite.
        """
        check_finite_sums(merged)
        return merged

    def points(self, block: Block) -> Points:
        """Return a block in this geometry; a zero embedding gives NaN, which ``finish`` finds.

        Directions of blocks in memory are computed once for all passes.
        """
        if (derived := block.derived) is None or not self.geometry.spherical:
            return self._seen(block)
        owner, kept = (self.head, self.geometry), derived.kept
        if len(kept.owner) != len(owner) or any(map(is_not, kept.owner, owner)):
            kept = derived.kept = Kept(owner, derived.n_bytes)
        place = block.start, block.features.shape[0]  # the last block grows with rows appended
        if place not in kept.tensors:
            points = self._seen(block)
            size = points.directions.nbytes + points.lengths.nbytes
            if size <= kept.bytes_left:
                kept.bytes_left -= size
                kept.tensors[place] = points.directions, points.lengths
            return points
        u, r = kept.tensors[place]
        return Points(block.features.to(u.dtype), u, u, r)

    def _seen(self, block: Block) -> Points:
        return self.geometry.points_of(self.head, block.features, checked=False)


@dataclass(frozen=True)
class ClassSumsPass(Pass):
    """First pass: n_c, and for arccos s_c [C, Z].

    Features are read only if directions are summed.
    """

    name = "class sums"

    def start(self, source: FeatureStore) -> Statistics:
        """Return zero sums; without directions, the counts of all points, from the labels alone."""
        if not self.geometry.curved_loss:
            return Statistics(UNNAMED, ClassSums.of(source.labels))
        return Statistics(UNNAMED, ClassSums.zeros(source.classes, self.head.n_outputs))

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
        """Yield all points, or none if labels are enough."""
        return source.blocks() if self.geometry.curved_loss else iter(())

    def add(self, so_far: Statistics, block: Block) -> None:
        """Add ``sum_{i in c} u_i`` to s_c."""
        so_far.by_class.add_(block.labels, self.points(block).directions)


@dataclass(frozen=True)
class PointsPass(Pass):
    """Pass that sums a curvature term over the points, given the weights of their pairs.

    Parameters
    ----------
    pair_weights : tuple of tuples of PairWeights
        Weights w_i and m_i of each kind of pairs. Those of one tuple add up; each tuple has its own
        totals.
    """

    class_sums: ClassSums
    term: CurvatureTerm
    pair_weights: tuple[tuple[PairWeights, ...], ...] = field(kw_only=True)

    name = "points"

    def inputs(self) -> list[Tensor]:
        """Return also what the weights depend on."""
        kinds = chain.from_iterable(self.pair_weights)
        return [*super().inputs(), *(t for kind in kinds for t in kind.tensors())]

    def settings(self) -> str:
        """Return also the kinds of weights."""
        return f"{self.term} {[[str(kind) for kind in kinds] for kinds in self.pair_weights]}"

    def start(self, source: FeatureStore) -> Statistics:
        """Return zero totals for each tuple of weights."""
        totals = tuple(total for _ in self.pair_weights for total in self.term.zeros())
        for kind in chain.from_iterable(self.pair_weights):
            kind.prepare()
        counts = ClassSums.zeros(self.class_sums.classes, int(self.geometry.curved_loss))
        return Statistics(UNNAMED, counts, totals)

    def add(self, so_far: Statistics, block: Block) -> None:
        """Add ``2 sum_i J_i^T T_i J_i / r_i^2`` of the block, and its pairs.

        For the audit, add also points by class and, where the first pass summed directions,
        ``sum_i <u_i, r>``.
        """
        points, curved = self.points(block), self.geometry.curved_loss
        u = points.directions
        along = u @ probe_direction(u)[:, None] if curved else None
        for kinds, totals in zip(self.pair_weights, self.split(so_far.totals), strict=True):
            sums = [kind.sums(points, block.labels) for kind in kinds]
            w, m = sums[0] if len(sums) == 1 else (reduce(add, s) for s in zip(*sums, strict=True))
            blocks = PointBlocks.of(u, w, m, curved_loss=curved)
            add_terms(totals, self.term.points(points, blocks))
            for kind in kinds:
                for columns, y in kind.pairs(points, block.labels):
                    add_terms(totals, self.term.pairs(points, columns, y))
        so_far.by_class.add_(block.labels, along)

    def split(self, totals: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return the totals of each tuple of weights."""
        step = len(totals) // len(self.pair_weights)
        return [totals[i : i + step] for i in range(0, len(totals), step)]

    def audit(self, merged: Statistics) -> None:
        """Check the number of points of each class, and the sum of their directions."""
        super().audit(merged)
        if self.geometry.curved_loss:
            eps = torch.finfo(self.head.parameters.dtype).eps
            check_same_directions(merged.by_class, self.class_sums, eps)


@dataclass(frozen=True)
class ClassesPass(Pass):
    """Pass that collects a tile of G_c for some classes, those of ``class_sums`` [c]."""

    class_sums: ClassSums
    term: CurvatureTerm
    tile: Tile = field(kw_only=True)

    name = "classes"

    def settings(self) -> str:
        """Return also which tile."""
        return f"{self.term} {self.tile}"

    def start(self, source: FeatureStore) -> Statistics:
        """Return ``G_c = 0`` [c, *tile]."""
        shape = (len(self.class_sums.classes), *self.tile.shape)
        sums = torch.zeros(shape, dtype=torch.float64, device=source.device)
        return Statistics(UNNAMED, ClassSums.zeros(self.class_sums.classes, 0), (sums,))

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
        """Yield the points class by class."""
        n_rows, n_columns = self.tile.n_bytes // (8 * self.tile.shape[-1]), self.tile.shape[-1]
        row_bytes, start = 8 * max(n_rows, n_columns), 0
        for label in self.class_sums.classes.tolist():
            members = source.members(label)
            for part in blocks(len(members), row_bytes, CACHE_BYTES, LEAST_ROWS):
                index = members[part]
                labels = torch.full_like(index, label, device=source.device)
                yield Block(start, source.rows(index), labels)
                start += len(index)

    def add(self, so_far: Statistics, block: Block) -> None:
        """Add ``sum_i J^_i`` to G_c: the points of a block have one class."""
        so_far.by_class.add_(block.labels)
        position = self.class_sums.position(block.labels[:1])
        tile_sum = self.term.class_sum(self.tile, self.points(block))
        so_far.totals[0].index_add_(0, position, tile_sum[None])

    def finish(self, merged: Statistics) -> Statistics:
        """Return the products of these G_c, one for each total of the term, and their sum."""
        (sums,) = merged.totals
        products = self.term.zeros()
        add_terms(products, self.term.classes(self.tile, sums))
        done = Statistics(merged.task, merged.by_class, (*products, sums.sum(0)))
        return super().finish(done)


def class_chunks(sums: ClassSums, tile: Tile) -> Iterator[ClassSums]:
    """Yield all classes in pieces whose tiles fit a block: one pass collects them."""
    for part in blocks(len(sums.classes), tile.n_bytes):
        yield ClassSums(sums.classes[part], sums.counts[part], sums.sums[part, :0])


T = TypeVar("T")
PassSchedule = Generator[Pass, Statistics, T]
"""Yields passes, is sent their finished statistics, returns a T."""


def execute(schedule: PassSchedule[T], source: FeatureStore, *, progress: bool = False) -> T:
    """Run a schedule on one source in this process; a pass of over two seconds shows a bar."""
    finished: Any = None
    n = len(source)
    while True:
        task, result = next_pass(schedule, finished)
        if task is None:
            return result  # type: ignore[return-value]
        with tqdm(total=n, desc=task.name, delay=2, disable=not progress) as bar:
            finished = task.finish(task.read(source, bar.update if progress else None))


def next_pass(
    schedule: PassSchedule[T], finished: Statistics | None
) -> tuple[Pass | None, T | None]:
    """Return the next pass and None, or None and the result of the schedule."""
    try:
        return schedule.send(finished), None  # type: ignore[arg-type]
    except StopIteration as stop:
        return None, stop.value


Totals = Callable[[CurvatureTerm], PassSchedule[list[Tensor]]]
"""Passes that return the totals of a term over some pairs."""
