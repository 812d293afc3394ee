"""What the pieces share: points made on the fly, clocks, rates of the machine, one JSON."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.environment import environment
from benchmarks.records import RESULTS, read_record, write_record

NAME, SMOKE_FOLDER = "scale", Path("benchmark-cache")
MEMORY_BYTES = 64 * 2**20
Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """Sizes of a linear head and of the points before it, whose classes share a mean.

    ``common`` is its length beside that of a class's own: with sqrt(2) the points of two classes
    are about 60 degrees apart, without it 90.
    """

    n_features: int = 512
    n_outputs: int = 128
    n_classes: int = 1_000
    batch: int = 10_000
    common: float = 0.0

    def model(self, device: str = "cpu") -> torch.nn.Module:
        """A linear layer with the same weights every time."""
        torch.manual_seed(0)
        return torch.nn.Linear(self.n_features, self.n_outputs).to(device)


SMALL = Problem(16, 8, 10, 200)


@dataclass(frozen=True)
class Points:
    """Class means plus noise, the same at every pass: (features [b, D], labels [b]) batches.

    A shard of ``n_shards`` takes every so-manieth batch.

    Examples
    --------
    >>> points = Points(500, SMALL)
    >>> [len(y) for _, y in points], [len(y) for _, y in Points(500, SMALL, shard=1, n_shards=2)]
    ([200, 200, 100], [200])
    """

    n: int
    problem: Problem
    device: str = "cpu"
    shard: int = 0
    n_shards: int = 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batch, shape = self.problem.batch, (self.problem.n_classes, self.problem.n_features)
        means = torch.randn(shape, generator=self._generator(0), device=self.device)
        if self.problem.common:
            means += self.problem.common * torch.randn(
                shape[1], generator=self._generator(-1), device=self.device
            )
        for start in range(self.shard * batch, self.n, self.n_shards * batch):
            generator = self._generator(1 + start)
            size = min(batch, self.n - start)
            labels = torch.randint(shape[0], (size,), generator=generator, device=self.device)
            x = torch.randn(size, shape[1], generator=generator, device=self.device)
            yield x.add_(means[labels]), labels

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def together(self) -> tuple[Tensor, Tensor]:
        """All at once [N, D] and [N]."""
        x = torch.empty(self.n, self.problem.n_features, device=self.device)
        labels = torch.empty(self.n, dtype=torch.int64, device=self.device)
        start = 0
        for part, y in self:
            x[start : start + len(y)], labels[start : start + len(y)] = part, y
            start += len(y)
        return x, labels


def wait(device: str = "cpu") -> None:
    """Until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: str = "cpu") -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wait(device)
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    wait(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def best(call: Callable[[], Any], repeats: int, device: str = "cpu") -> float:
    """Least wall time of some calls after one to warm up."""
    call()
    return min(seconds(call, device)[0] for _ in range(repeats))


def matmul_rates(size: int = 2_048, device: str = "cpu") -> dict[str, float]:
    """10^9 operations a second of a square product, for each precision."""
    rates = {}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        a = torch.randn(size, size, dtype=dtype, device=device)
        out = torch.empty_like(a)
        product = lambda a=a, out=out: torch.mm(a, a, out=out)  # noqa: E731
        rates[f"{name}_gflops"] = 2 * size**3 / best(product, 5, device) / 1e9
    return rates


def apart(options: argparse.Namespace, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a fresh process, whose peak memory is its own; here for a smoke run."""
    if options.budget == "smoke":
        return function(*arguments)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_bytes() -> int:
    """Largest resident memory of this process so far; pages of a mapped file count."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def own_memory(interval: float = 0.02) -> Iterator[list[int]]:
    """Largest memory but for mapped files, looked at every so often; [0] where it cannot be."""
    peak, done = [_own_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(interval):
            peak[0] = max(peak[0], _own_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _own_bytes() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return sum(1024 * int(x.split()[1]) for x in lines if x.startswith("RssAnon"))


def slope(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Of the least-squares line through the logarithms.

    Examples
    --------
    >>> round(slope([10, 100, 1000], [1, 100, 10_000]), 6)
    2.0
    """
    if len(set(sizes)) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def parser(module: str, words: str | None) -> argparse.ArgumentParser:
    """The options of every piece."""
    found = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}.{module}", description=(words or "").splitlines()[0]
    )
    found.add_argument("--budget", choices=("smoke", "full"), default="full")
    found.add_argument("--output", type=Path, help="folder of the JSON")
    return found


def folder_of(options: argparse.Namespace) -> Path:
    """Where the JSON goes: a smoke run does not touch the results."""
    default = RESULTS if options.budget == "full" else SMOKE_FOLDER
    return options.output or default


def write_part(name: str, content: Row, options: argparse.Namespace) -> None:
    """Put one piece into the record, beside the others; it keeps its own environment."""
    folder = folder_of(options)
    known = read_record(NAME, folder) if (folder / f"{NAME}.json").is_file() else {}
    known.pop("environment", None)
    part = {"environment": environment(), "budget": options.budget, **content}
    print(write_record(NAME, {**known, name: part}, folder).name, name, flush=True)


def show(row: Row) -> Row:
    """Print a row in few digits; returns it."""
    print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row
