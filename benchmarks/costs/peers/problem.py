"""A last-layer problem as a file that any environment reads, and how every peer is measured on it.

    python -m benchmarks.costs.peers.problem OUT.safetensors --points 10000

Tensors, float32: ``features`` [N, D], ``targets`` [N, Z], ``queries`` [M, D], ``weight`` [Z, D]
and ``bias`` [Z]. The targets are the network's own outputs: the GGN of a regression does not depend
on them. Fit and prediction run in a process each: time, memory that was added, failures.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import TensorDataset


def write_problem(
    path: Path, features: Tensor, queries: Tensor, weight: Tensor, bias: Tensor
) -> Path:
    """Write a problem for the linear head ``weight``, ``bias``; returns ``path``.

    Parameters
    ----------
    features : Tensor [N, D], queries : Tensor [M, D]
        Inputs of the head: the points to fit on and the points to predict.
    weight : Tensor [Z, D], bias : Tensor [Z]
    """
    tensors = {"features": features, "queries": queries, "weight": weight, "bias": bias}
    tensors["targets"] = torch.nn.functional.linear(features, weight, bias)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().float().contiguous() for name, t in tensors.items()}, path)
    return path


def random_problem(
    path: Path, n_points: int, n_queries: int, n_features: int, n_outputs: int
) -> Path:
    """N(0, 1) features and queries, N(0, 1/D) weights, zero bias."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n_points, n_features, generator=generator)
    queries = torch.randn(n_queries, n_features, generator=generator)
    weight = torch.randn(n_outputs, n_features, generator=generator) / n_features**0.5
    return write_problem(path, features, queries, weight, torch.zeros(n_outputs))


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--outputs", type=int, default=128)
    o = parser.parse_args()
    print(random_problem(o.path, o.points, o.queries, o.features, o.outputs).name)


class Batches:
    """(x, y) batches until ``seconds`` have passed; ``points`` is how many were given."""

    def __init__(self, x: Tensor, y: Tensor, size: int, seconds: float) -> None:
        self.dataset = TensorDataset(x, y)
        self.size, self.seconds, self.points = size, seconds, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start, self.points = time.perf_counter(), 0
        for rows in range(0, len(self.dataset), self.size):
            if rows and time.perf_counter() - start > self.seconds:
                return
            x, y = self.dataset[rows : rows + self.size]
            self.points = rows + len(x)
            yield x, y


def repeated(run: Callable[[], int], total: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Least time of ``run``, repeated while ``seconds`` allow, and the peak memory it adds.

    ``run`` returns how many points it did; one that did fewer than ``total`` is not repeated.
    """
    best, deadline, before = float("inf"), time.perf_counter() + seconds, peak_mb()
    for _ in range(repeats):
        start = time.perf_counter()
        done = run()
        best = min(best, time.perf_counter() - start)
        if done < total or time.perf_counter() + best > deadline:
            break
    return {"seconds": best, "points": done, "peak_mb": peak_mb() - before}


def peak_mb() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def guarded(stage: str, memory_gb: float, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """``{stage}_seconds`` and so on, or ``error``; address space is limited before."""
    limit = int(memory_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        return {f"{stage}_{name}": value for name, value in run().items()}
    except Exception as error:
        return failure(stage, type(error).__name__, str(error))


def failure(stage: str, kind: str, message: str) -> dict[str, Any]:
    """The field ``error``; ``bytes`` is the allocation that did not fit, where one is named."""
    wanted = re.search(r"allocate (\d+) bytes", message)
    content = {"stage": stage, "type": kind, "message": message[:300]}
    return {"error": {**content, "bytes": int(wanted[1]) if wanted else None}}


def own_process(module: str, *extra: str) -> dict[str, Any]:
    """Run ``module`` with this command's arguments and more; its last line is the value."""
    command = [sys.executable, "-m", module, *sys.argv[1:], *extra]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:  # killed, for example
        return failure(module, "exit", str(done.returncode))
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


if __name__ == "__main__":
    main()
