"""The same fit in one process and in two: ``python -m benchmarks scale --pieces processes``.

N = 1,000,000 points, each process with one thread and its own share of the batches, started by
torchrun. The time is that of the slower process, from a barrier to the end of ``fit``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.scale.common import Points, Row, show, write_piece
from benchmarks.sizes import SCALE
from benchmarks.timing import matmul_rates, seconds
from laplace_metric import LaplaceEmbedder

DISTRIBUTED: dict[str, Any] = {"distributed": True}


def work(size: str, path: Path) -> None:
    """What each process does; the first one writes the row."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    scale = SCALE["processes"][size]
    (n, *_), problem = scale.n, scale.problem
    points = Points(n, problem, shard=rank, n_shards=world)
    embedder = LaplaceEmbedder(problem.model(), structure="diag")
    settings = {**DISTRIBUTED, "progress": False, "memory_bytes": scale.memory_bytes}
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


def run(options: Namespace) -> None:
    """One process, then two; as a worker, what each of them does."""
    if options.worker:
        return work(options.size, options.worker)
    rows = [show(launch(processes, options.size)) for processes in (1, 2)]
    ratio = rows[0]["wall_seconds"] / rows[1]["wall_seconds"]
    return write_piece("processes", {"rows": rows, "times_as_fast": ratio}, options)
