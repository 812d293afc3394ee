"""Anonymous memory of a fit, run after run: ``python -m benchmarks scale --pieces memory``.

Features of 256 numbers go to a temporary file beyond 64 MiB. Every run is a process of its own,
whose anonymous memory (RssAnon: no mapped files) is read every 5 ms during the fit. A heap that
cannot shrink shows in some runs only, so the largest of ten runs counts, not one of them.
"""

from __future__ import annotations

from argparse import Namespace

from benchmarks.scale.common import Points, Row, apart, show, write_piece
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import own_memory, seconds
from laplace_metric import LaplaceEmbedder

INTERVAL = 0.005
"""Seconds between two readings."""


def anonymous_peak(n: int, structure: str, size: ScaleSize) -> Row:
    """Largest anonymous memory of one fit, in MB, and what was there before."""
    embedder = LaplaceEmbedder(size.problem.model(), structure=structure)
    embedder.fit(Points(1_000, size.problem), progress=False)  # libraries are loaded
    with own_memory(INTERVAL) as peak:
        base = peak[0]
        points = Points(n, size.problem)
        wall, _ = seconds(
            lambda: embedder.fit(points, progress=False, memory_bytes=size.memory_bytes)
        )
    return {"peak_mb": peak[0] / 1e6, "base_mb": base / 1e6, "wall_seconds": wall}


def run(options: Namespace) -> None:
    """Every structure and number of points; the record is written after every run."""
    size, rows = SCALE["memory"][options.size], {}
    for structure in ("diag", "kron"):
        runs: dict[int, list[Row]] = {n: [] for n in options.n or size.n}
        for _ in range(size.repeats):
            for n, done in runs.items():
                done.append(apart(size, anonymous_peak, n, structure, size))
                rows[structure, n] = summary(n, structure, done)
                write_piece("memory", {"rows": list(rows.values())}, options)
    for row in rows.values():
        show(row)


def summary(n: int, structure: str, rows: list[Row]) -> Row:
    """Smallest and largest peak of some runs of one case."""
    peaks = sorted(row["peak_mb"] for row in rows)
    return {
        "n": n,
        "structure": structure,
        "runs": len(rows),
        "smallest_peak_mb": peaks[0],
        "largest_peak_mb": peaks[-1],
        "largest_base_mb": max(row["base_mb"] for row in rows),
        "peaks_mb": peaks,
        "wall_seconds": min(row["wall_seconds"] for row in rows),
    }
