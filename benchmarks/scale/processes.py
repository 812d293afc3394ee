"""The same fit in one process and in two: ``python -m benchmarks.scale.processes``.

N = 1,000,000 points, each process with one thread and its own share of the batches, started by
torchrun. The time is that of the slower process, from a barrier to the end of ``fit``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.scale.common import (
    MEMORY_BYTES,
    SMALL,
    Points,
    Problem,
    Row,
    matmul_rates,
    parser,
    seconds,
    show,
    write_part,
)
from laplace_metric import LaplaceEmbedder

PROBLEMS = {"full": (1_000_000, Problem()), "smoke": (4_000, SMALL)}
DISTRIBUTED: dict[str, Any] = {"distributed": True}


def work(budget: str, path: Path) -> None:
    """What each process does; the first one writes the row."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    n, problem = PROBLEMS[budget]
    points = Points(n, problem, shard=rank, n_shards=world)
    embedder = LaplaceEmbedder(problem.model(), structure="diag")
    settings = {**DISTRIBUTED, "progress": False, "memory_bytes": MEMORY_BYTES}
    few = Points(1_000 * world, replace(problem, batch=1_000), shard=rank, n_shards=world)
    embedder.fit(few, **settings)  # libraries are loaded
    distributed.barrier()
    slowest = torch.tensor(seconds(lambda: embedder.fit(points, **settings)))
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    if rank == 0:
        wall, cpu = slowest.tolist()
        rates = matmul_rates(2_048 if budget == "full" else 128)
        seen = embedder.fitted_.n_points
        row = {"processes": world, "n": n, "n_points": seen, "wall_seconds": wall}
        path.write_text(json.dumps({**row, "cpu_seconds": cpu, **rates}))
    distributed.barrier()
    distributed.destroy_process_group()


def launch(processes: int, budget: str) -> Row:
    """One torchrun; its row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        run = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        script = ["-m", "benchmarks.scale.processes", "--worker", str(path), "--budget", budget]
        command = [sys.executable, "-m", *run, *script]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        row: Row = json.loads(path.read_text())
        return row


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.worker:
        return work(options.budget, options.worker)
    rows = [show(launch(processes, options.budget)) for processes in (1, 2)]
    ratio = rows[0]["wall_seconds"] / rows[1]["wall_seconds"]
    return write_part("processes", {"rows": rows, "times_as_fast": ratio}, options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("processes", __doc__)
    found.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
