"""The passes of a fit, and how they are run: every pass reads each point once.

A pass ends in ``Statistics``; a schedule is a fit as a row of passes. A schedule is a generator: it
yields a pass, is sent the finished statistics of all points, and returns the curvature. Who reads
the points, in how many places, and how the parts are merged is not its business: ``execute`` reads
one source in this process; ``distributed`` and ``scale`` read shards, whose merged statistics are
audited.

    ClassSumsPass    n_c and s_c [C, Z]: what pair weights by class need
    PointsPass       2 sum_i J_i^T T_i J_i / r_i^2, and the pairs that must be looked at one by one
    ClassesPass      a tile of G_c = sum_{i in c} J^_i, for the cross blocks of pairs by class

        sum_ij y_ij J^_i^T J^_j = (1/P + b) sum_c G_c^T G_c - b G^T G          G = sum_c G_c

Only complete G_c may be multiplied, so G_c is what is merged; it is dropped when its products are
taken.

``a + b`` of the statistics of two disjoint sets of points are those of their union, in any order
and for any split (up to float64 rounding). Everything is accumulated in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from operator import add, is_not
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric._utils.display import tqdm
from laplace_metric.curvature._margin import PairWeights
from laplace_metric.curvature._terms import CurvatureTerm, Geometry, Tile, add_terms
from laplace_metric.curvature.by_class import ClassSums, PointBlocks, Points
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.io import digest
from laplace_metric.models._reading import Block, Kept
from laplace_metric.models._store import BLOCK_BYTES, FeatureStore, block_rows

CHUNK_BYTES = 16 * 2**20
"""Memory of the tiles of all classes of one pass."""
ROUNDINGS = 1_000
"""Roundings a point by which its direction may differ from pass to pass."""
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


def probe_direction(like: Tensor) -> Tensor:
    """A fixed unit vector r of as many entries as ``like`` [n, K] has columns."""
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


T = TypeVar("T")
Callback = Callable[[int], Any]
"""Called with the number of points of every block that was read."""


@dataclass(frozen=True)
class Pass(ABC):
    """One reading of the points.

    Parameters
    ----------
    head : HeadJacobian
    geometry : Geometry
    class_sums : ClassSums or None
        Of the first pass (of some classes, where only their points are read); None in that one.
    term : CurvatureTerm or None
        What is summed.
    """

    head: HeadJacobian
    geometry: Geometry
    class_sums: ClassSums | None = None
    term: CurvatureTerm | None = None

    name = ""
    """What is collected, for the fingerprint."""

    def inputs(self) -> list[Tensor]:
        """Results of earlier passes that this one depends on."""
        return [*(self.class_sums.tensors if self.class_sums else ()), *self.shared()]

    def shared(self) -> Sequence[Tensor]:
        """Return the tensors that were computed, not summed, and so could differ by machine."""
        return self.term.inputs if self.term else []

    @property
    def classes(self) -> Tensor | None:
        """The classes [C] whose points are counted, where they are known before reading."""
        return self.class_sums.classes if self.class_sums else None

    def settings(self) -> str:
        """Plain values that this pass depends on, in words."""
        return str(self.term)

    @cached_property
    def task(self) -> str:
        """Fingerprint: head, geometry, settings, and the results of earlier passes."""
        head = f"{self.head.signature}|{self.head.layouts}"
        described = f"{self.name}|{self.geometry}|{head}|{self.settings()}"
        return digest(described, [self.head.parameters, *self.head.constants, *self.inputs()])

    @abstractmethod
    def start(self, source: FeatureStore) -> Statistics:
        """Sums of no point."""

    @abstractmethod
    def add(self, so_far: Statistics, block: Block) -> None:
        """Add the points of a block, in place; no value is looked at, so a GPU need not wait."""

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
        """Return the blocks that are read."""
        return source.blocks()

    def read(self, source: FeatureStore, callback: Callback | None = None) -> Statistics:
        """Read a source; statistics that name no task."""
        with torch.no_grad():
            so_far = self.start(source)
            for block in self.blocks(source):
                self.add(so_far, block)
                if callback is not None:
                    callback(len(block))
        return so_far

    def collect(self, source: FeatureStore, callback: Callback | None = None) -> Statistics:
        """Read one shard of the points; statistics to be merged with those of the others.

        Examples
        --------
        >>> from laplace_metric.curvature import ContrastiveLoss
        >>> from laplace_metric.curvature._ggn import curvature_passes
        >>> from laplace_metric.models._store import FeatureStore
        >>> from laplace_metric.heads._jacobian import LinearJacobian
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
        """Check the sums over all points; what the schedule is sent.

        Raises
        ------
        InputError, NonFiniteError
            If a sum is NaN or infinite.
        """
        check_finite_sums(merged)
        return merged

    def points(self, block: Block) -> Points:
        """A block in this geometry; a zero embedding gives NaN, found when the pass is over.

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
    """n_c, and for arccos s_c [C, Z]. Features are read only where directions are summed."""

    name = "class sums"

    def start(self, source: FeatureStore) -> Statistics:
        """No points yet; without directions, the counts of all of them."""
        if not self.geometry.curved_loss:
            return Statistics(UNNAMED, ClassSums.of(source.labels))
        return Statistics(UNNAMED, ClassSums.zeros(source.classes, self.head.n_outputs))

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
        """All points, or none where labels are enough."""
        return source.blocks() if self.geometry.curved_loss else iter(())

    def add(self, so_far: Statistics, block: Block) -> None:
        """``s_c += sum_{i in c} u_i``."""
        so_far.by_class.add_(block.labels, self.points(block).directions)


@dataclass(frozen=True)
class PointsPass(Pass):
    """A curvature term over the points, given the weights of their pairs.

    Parameters
    ----------
    pair_weights : tuple of tuples of PairWeights
        w_i and m_i of each kind of pairs; those of one tuple add up, each tuple has its totals.
    """

    class_sums: ClassSums
    term: CurvatureTerm
    pair_weights: tuple[tuple[PairWeights, ...], ...] = field(kw_only=True)

    name = "points"

    def inputs(self) -> list[Tensor]:
        """Also what the weights depend on."""
        kinds = chain.from_iterable(self.pair_weights)
        return [*super().inputs(), *(t for kind in kinds for t in kind.tensors())]

    def settings(self) -> str:
        """Also the kinds of weights."""
        return f"{self.term} {[[str(kind) for kind in kinds] for kinds in self.pair_weights]}"

    def start(self, source: FeatureStore) -> Statistics:
        """Zero totals for each tuple of weights."""
        totals = tuple(total for _ in self.pair_weights for total in self.term.zeros())
        for kind in chain.from_iterable(self.pair_weights):
            kind.prepare()
        counts = ClassSums.zeros(self.class_sums.classes, int(self.geometry.curved_loss))
        return Statistics(UNNAMED, counts, totals)

    def add(self, so_far: Statistics, block: Block) -> None:
        """``2 sum_i J_i^T T_i J_i / r_i^2`` of the block, and its pairs.

        For the audit also points by class and, where the first pass summed directions,
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
        """The totals of each tuple of weights."""
        step = len(totals) // len(self.pair_weights)
        return [totals[i : i + step] for i in range(0, len(totals), step)]

    def audit(self, merged: Statistics) -> None:
        """The same number of points of each class, in the same directions."""
        super().audit(merged)
        if self.geometry.curved_loss:
            eps = torch.finfo(self.head.parameters.dtype).eps
            check_same_directions(merged.by_class, self.class_sums, eps)


@dataclass(frozen=True)
class ClassesPass(Pass):
    """A tile of G_c for the classes of ``class_sums`` [c], some of all; reads their points."""

    class_sums: ClassSums
    term: CurvatureTerm
    tile: Tile = field(kw_only=True)

    name = "classes"

    def settings(self) -> str:
        """Also which tile."""
        return f"{self.term} {self.tile}"

    def start(self, source: FeatureStore) -> Statistics:
        """``G_c = 0`` [c, *tile]."""
        shape = (len(self.class_sums.classes), *self.tile.shape)
        sums = torch.zeros(shape, dtype=torch.float64, device=source.device)
        return Statistics(UNNAMED, ClassSums.zeros(self.class_sums.classes, 0), (sums,))

    def blocks(self, source: FeatureStore) -> Iterator[Block]:
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
        so_far.by_class.add_(block.labels)
        position = self.class_sums.position(block.labels[:1])
        tile_sum = self.term.class_sum(self.tile, self.points(block))
        so_far.totals[0].index_add_(0, position, tile_sum[None])

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


PassSchedule = Generator[Pass, Statistics, T]


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
    """The next pass, or None and what the schedule returns."""
    try:
        return schedule.send(finished), None  # type: ignore[arg-type]
    except StopIteration as stop:
        return None, stop.value


def check_finite_sums(merged: Statistics) -> None:
    """Check that every total is finite.

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
