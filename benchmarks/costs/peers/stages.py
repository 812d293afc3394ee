"""Measure a fit and a prediction in a process each: time, memory that was added, failures."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset


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


def repeated(run: Callable[[], int], whole: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Least time of ``run``, repeated while ``seconds`` allow, and the peak memory it adds.

    ``run`` returns how many points it did; one that did fewer than ``whole`` is not repeated.
    """
    best, deadline, before = float("inf"), time.perf_counter() + seconds, peak_mb()
    for _ in range(repeats):
        start = time.perf_counter()
        done = run()
        best = min(best, time.perf_counter() - start)
        if done < whole or time.perf_counter() + best > deadline:
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
