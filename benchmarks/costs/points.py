"""Fits of N points: time and memory, by ``python -m benchmarks costs --pieces points [--n N ...]``.

Features are made on the fly in batches of 2,000 (D = 512, 1,000 classes), go to a temporary file
beyond 64 MiB (4 N D bytes of disk) and are read back. Every size is a process of its own. Making
the points, writing them and one pass of reading are measured alone, in the same process after the
fit. Memory is that of a second process, whose freed blocks go back to the system at once; what the
first one occupies, where glibc keeps them, differs from run to run.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.costs.freed_blocks import given_back
from benchmarks.records import folder_of, write_record
from benchmarks.sizes import POINTS, PointsSize, Problem
from benchmarks.timing import in_own_process, own_memory, peak_bytes, seconds, slope
from laplace_metric import LaplaceEmbedder
from laplace_metric.models._feature_store import FeatureStore

NAME = "points"
Row = dict[str, Any]


@dataclass(frozen=True)
class Points:
    """Class means plus noise, the same at every pass: (features [b, D], labels [b]) batches.

    Examples
    --------
    >>> from benchmarks.sizes import SMALL_PROBLEM
    >>> [len(y) for _, y in Points(500, SMALL_PROBLEM)]
    [200, 200, 100]
    """

    n: int
    problem: Problem

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batch, shape = self.problem.batch, (self.problem.n_classes, self.problem.n_features)
        means = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for start in range(0, self.n, batch):
            generator = torch.Generator().manual_seed(1 + start)
            size = min(batch, self.n - start)
            labels = torch.randint(shape[0], (size,), generator=generator)
            x = torch.randn(size, shape[1], generator=generator)
            yield x.add_(means[labels]), labels


def apart(size: PointsSize, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a fresh process, whose peak memory is its own; here for a smoke run."""
    if size.name == "smoke":
        return function(*arguments)
    return in_own_process(function, *arguments)


def fit_cost(n: int, structure: str, size: PointsSize) -> Row:
    """Time and memory of one fit, and of its parts."""
    points, (embedder, fit) = Points(n, size.problem), fit_of(n, structure, size)
    base = peak_bytes()
    with passes() as read, own_memory() as own:
        wall, cpu = seconds(fit)
    peak = peak_bytes()
    generating, (writing, reading) = seconds(lambda: drain(points))[0], file_seconds(points, size)
    parts = {"generating": generating, "writing": writing, "reading": reading * read[0]}
    return {
        "n": n,
        "structure": structure,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "base_mb": base / 1e6,
        "peak_mb": peak / 1e6,
        "kept_mb": own[0] / 1e6,
        "features_mb": 4e-6 * n * size.problem.n_features,
        "passes": read[0],
        **{f"{name}_share": value / wall for name, value in parts.items()},
        "determined_parameters": embedder.posterior_.n_effective_parameters,
    }


def fit_of(n: int, structure: str, size: PointsSize) -> tuple[LaplaceEmbedder, Callable[[], Any]]:
    """Return an embedder that has loaded its libraries, and its fit of N points."""
    points, embedder = (
        Points(n, size.problem),
        LaplaceEmbedder(size.problem.model(), structure=structure),
    )
    embedder.fit(Points(1_000, size.problem), progress=False)
    return embedder, lambda: embedder.fit(points, progress=False, memory_bytes=size.memory_bytes)


def own_peak(n: int, structure: str, size: PointsSize) -> float:
    """Peak of one fit in MB of memory of its own, what was there before included."""
    _, fit = fit_of(n, structure, size)
    with own_memory() as own:
        fit()
    return own[0] / 1e6


@contextmanager
def passes() -> Iterator[list[int]]:
    """Counts how often the features are read from end to end."""
    count, blocks = [0], FeatureStore.blocks

    def counted(store: FeatureStore) -> Any:
        count[0] += 1
        return blocks(store)

    with patch.object(FeatureStore, "blocks", counted):
        yield count


def drain(points: Points) -> None:
    """Make every batch."""
    for _ in points:
        pass


def file_seconds(points: Points, size: PointsSize) -> tuple[float, float]:
    """Wall seconds to keep N points (checked for NaN, as fit does), and to read them once."""
    x, labels = next(iter(points))

    def write() -> None:
        for start in range(0, points.n, len(x)):
            stop = min(len(x), points.n - start)
            store.append(x[:stop], labels[:stop], where="features")

    with FeatureStore(size.memory_bytes) as store:
        writing, _ = seconds(write)
        return writing, seconds(lambda: [block.features.amax() for block in store.blocks()])[0]


def run(options: Namespace) -> None:
    """Measure every number of points and structure, and write ``points.json``."""
    size = POINTS[options.size]
    cases = [(n, s) for s in ("diag", "kron") for n in options.n or size.n]
    rows = [apart(size, fit_cost, *case, size) for case in cases]
    with given_back():
        for row, case in zip(rows, cases, strict=True):
            row["own_peak_mb"] = apart(size, own_peak, *case, size)
    print(*rows, sep="\n", flush=True)
    of = {s: [r for r in rows if r["structure"] == s] for _, s in cases}
    slopes = {s: slope(*([r[k] for r in some] for k in ("n", "wall_seconds")))
              for s, some in of.items()}  # fmt: skip
    write_record(NAME, {"rows": rows, "slopes": slopes}, folder_of(options))
