"""Fitting N points: ``python -m benchmarks scale --pieces points [--n N ...]``.

Features are made on the fly in batches of 2,000 (D = 512, 1,000 classes), go to a temporary file
beyond 64 MiB (4 N D bytes of disk) and are read back, twice for the diagonal. Every size is a
process of its own. Making the points, writing them and one pass of reading are measured alone, in
the same process after the fit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.scale.common import Points, Row, apart, show, write_piece
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import matmul_rates, own_memory, peak_bytes, seconds, slope
from laplace_metric import LaplaceEmbedder
from laplace_metric.models.features import FeatureStore


def fit_cost(n: int, structure: str, size: ScaleSize) -> Row:
    """Time and memory of one fit, and of its parts."""
    points, model = Points(n, size.problem), size.problem.model()
    embedder = LaplaceEmbedder(model, structure=structure)
    fit = lambda: embedder.fit(points, progress=False, memory_bytes=size.memory_bytes)  # noqa: E731
    embedder.fit(Points(1_000, size.problem), progress=False)  # libraries are loaded
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
        "own_peak_mb": own[0] / 1e6,
        "features_mb": 4e-6 * n * size.problem.n_features,
        "passes": read[0],
        **{f"{name}_share": value / wall for name, value in parts.items()},
        "determined_parameters": embedder.posterior_.n_effective_parameters,
    }


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


def file_seconds(points: Points, size: ScaleSize) -> tuple[float, float]:
    """Wall seconds to keep N points (checked for NaN, as fit does), and to read them once."""
    x, labels = next(iter(points))

    def write() -> None:
        for start in range(0, points.n, len(x)):
            stop = min(len(x), points.n - start)
            store.append(x[:stop], labels[:stop], where="features")

    with FeatureStore(size.memory_bytes) as store:
        writing, _ = seconds(write)
        return writing, seconds(lambda: [block.features.amax() for block in store.blocks()])[0]


def slopes(rows: Sequence[Row]) -> Row:
    """Of the wall time against N, for each structure."""
    of_structure = {}
    for name in dict.fromkeys(row["structure"] for row in rows):
        of = [row for row in rows if row["structure"] == name]
        of_structure[name] = slope([row["n"] for row in of], [row["wall_seconds"] for row in of])
    return of_structure


def run(options: Namespace) -> None:
    """Every number of points and structure."""
    size = SCALE["points"][options.size]
    numbers = options.n or size.n
    cases = [(n, "diag") for n in numbers]
    cases += [(n, "kron") for n in numbers if n <= size.largest_kron]
    rates = apart(size, matmul_rates, size.product)
    rows = [show(apart(size, fit_cost, *case, size)) for case in cases]
    write_piece("points", {"rates": rates, "rows": rows, "slopes": slopes(rows)}, options)
