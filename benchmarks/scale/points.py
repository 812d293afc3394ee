"""Fitting N points: ``python -m benchmarks.scale.points [--sizes N ...]``.

Features are made on the fly in batches of 2,000 (D = 512, 1,000 classes), go to a temporary file
beyond 64 MiB (4 N D bytes of disk) and are read back, twice for the diagonal. Every size is a
process of its own. Making the points, writing them and one pass of reading are measured alone, in
the same process after the fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.scale.common import (
    MEMORY_BYTES,
    SMALL,
    Points,
    Problem,
    Row,
    apart,
    matmul_rates,
    own_memory,
    parser,
    peak_bytes,
    seconds,
    show,
    slope,
    write_part,
)
from laplace_metric import LaplaceEmbedder
from laplace_metric.models.features import FeatureStore


@dataclass(frozen=True)
class Budget:
    """Sizes of the diagonal fit; the Kronecker fit goes up to ``largest_kron``."""

    problem: Problem
    sizes: tuple[int, ...]
    largest_kron: int
    memory_bytes: int = MEMORY_BYTES
    product: int = 2_048


BUDGETS = {
    "full": Budget(Problem(batch=2_000), (100_000, 1_000_000, 10_000_000), 1_000_000),
    "smoke": Budget(SMALL, (500, 2_000), 2_000, 16_000, 128),
}


def fit_cost(n: int, structure: str, budget: Budget) -> Row:
    """Time and memory of one fit, and of its parts."""
    points, model = Points(n, budget.problem), budget.problem.model()
    embedder = LaplaceEmbedder(model, structure=structure)
    fit = lambda: embedder.fit(points, progress=False, memory_bytes=budget.memory_bytes)  # noqa: E731
    embedder.fit(Points(1_000, budget.problem), progress=False)  # libraries are loaded
    base = peak_bytes()
    with passes() as read, own_memory() as own:
        wall, cpu = seconds(fit)
    peak = peak_bytes()
    generating, (writing, reading) = seconds(lambda: drain(points))[0], file_seconds(points, budget)
    parts = {"generating": generating, "writing": writing, "reading": reading * read[0]}
    return {
        "n": n,
        "structure": structure,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "base_mb": base / 1e6,
        "peak_mb": peak / 1e6,
        "own_peak_mb": own[0] / 1e6,
        "features_mb": 4e-6 * n * budget.problem.n_features,
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


def file_seconds(points: Points, budget: Budget) -> tuple[float, float]:
    """Wall seconds to keep N points (checked for NaN, as fit does), and to read them once."""
    x, labels = next(iter(points))

    def write() -> None:
        for start in range(0, points.n, len(x)):
            size = min(len(x), points.n - start)
            store.append(x[:size], labels[:size], where="features")

    with FeatureStore(budget.memory_bytes) as store:
        writing, _ = seconds(write)
        return writing, seconds(lambda: [block.features.amax() for block in store.blocks()])[0]


def slopes(rows: Sequence[Row]) -> Row:
    """Of the wall time against N, for each structure."""
    found = {}
    for name in dict.fromkeys(row["structure"] for row in rows):
        of = [row for row in rows if row["structure"] == name]
        found[name] = slope([row["n"] for row in of], [row["wall_seconds"] for row in of])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    budget = BUDGETS[options.budget]
    sizes = options.sizes or budget.sizes
    cases = [(n, "diag") for n in sizes]
    cases += [(n, "kron") for n in sizes if n <= budget.largest_kron]
    rates = apart(options, matmul_rates, budget.product)
    rows = [show(apart(options, fit_cost, *case, budget)) for case in cases]
    write_part("points", {"rates": rates, "rows": rows, "slopes": slopes(rows)}, options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("points", __doc__)
    found.add_argument("--sizes", type=int, nargs="+", metavar="N")
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
