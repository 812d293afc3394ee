"""Fitting N points, by ``python -m benchmarks scale --pieces points processes [--n N ...]``.

``points``: features are made on the fly in batches of 2,000 (D = 512, 1,000 classes), go to a
temporary file beyond 64 MiB (4 N D bytes of disk) and are read back, twice for the diagonal. Every
size is a process of its own. Making the points, writing them and one pass of reading are measured
alone, in the same process after the fit.

``processes``: the same fit of 1,000,000 points in one process and in two, each with one thread and
its own share of the batches, started by torchrun. The time is that of the slower process, from a
barrier to the end of ``fit``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed

from benchmarks.scale.common import Points, Row, apart, show, write_piece
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import matmul_rates, own_memory, peak_bytes, seconds, slope
from laplace_metric import LaplaceEmbedder
from laplace_metric.models._store import FeatureStore


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


def run(options: Namespace) -> None:
    """Every number of points and structure."""
    size = SCALE["points"][options.size]
    numbers = options.n or size.n
    cases = [(n, "diag") for n in numbers]
    cases += [(n, "kron") for n in numbers if n <= size.largest_kron]
    rates = apart(size, matmul_rates, size.product)
    rows = [show(apart(size, fit_cost, *case, size)) for case in cases]
    of = {s: [r for r in rows if r["structure"] == s] for s in dict.fromkeys(s for _, s in cases)}
    slopes = {s: slope(*([r[k] for r in some] for k in ("n", "wall_seconds")))
              for s, some in of.items()}  # fmt: skip
    write_piece("points", {"rates": rates, "rows": rows, "slopes": slopes}, options)


def work(size: str, path: Path) -> None:
    """What each process does; the first one writes the row."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    scale = SCALE["processes"][size]
    (n, *_), problem = scale.n, scale.problem
    points = Points(n, problem, shard=rank, n_shards=world)
    embedder = LaplaceEmbedder(problem.model(), structure="diag")
    settings: dict[str, Any] = {"distributed": True, "progress": False}
    settings["memory_bytes"] = scale.memory_bytes
    few = Points(1_000 * world, replace(problem, batch=1_000), shard=rank, n_shards=world)
    embedder.fit(few, **settings)  # libraries are loaded
    distributed.barrier()
    slowest = torch.tensor(seconds(lambda: embedder.fit(points, **settings)))
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    if rank == 0:
        wall, cpu = slowest.tolist()
        rates = matmul_rates(scale.product)
        row = {"processes": world, "n": n, "n_points": embedder.fitted_.n_points}
        path.write_text(json.dumps({**row, "wall_seconds": wall, "cpu_seconds": cpu, **rates}))
    distributed.barrier()
    distributed.destroy_process_group()


def launch(processes: int, size: str) -> Row:
    """One torchrun; its row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        script = ["-m", "benchmarks", "scale", "--pieces", "processes", "--size", size]
        command = [sys.executable, "-m", *torchrun, *script, "--worker", str(path)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        row: Row = json.loads(path.read_text())
        return row


def run_processes(options: Namespace) -> None:
    """One process, then two; as a worker, what each of them does."""
    if options.worker:
        return work(options.size, options.worker)
    rows = [show(launch(processes, options.size)) for processes in (1, 2)]
    ratio = rows[0]["wall_seconds"] / rows[1]["wall_seconds"]
    return write_piece("processes", {"rows": rows, "times_as_fast": ratio}, options)
