"""What work takes: seconds, memory, a process of its own, and what the machine could do."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def usage(device: torch.device | None = None) -> Iterator[dict[str, float]]:
    """A dictionary that holds ``wall_seconds``, ``cpu_seconds`` and ``peak_mb`` afterwards.

    ``peak_mb`` is the largest resident memory of the process during the work, what was there
    before included; on systems without Linux's resettable mark, since the process began. On CUDA
    ``peak_cuda_mb`` joins it.

    Examples
    --------
    >>> with usage() as took:
    ...     _ = sum(range(1000))
    >>> sorted(took)
    ['cpu_seconds', 'peak_mb', 'wall_seconds']
    """
    took: dict[str, float] = {}
    cuda = device is not None and device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        CLEAR.write_text("5")
    wall, cpu = time.perf_counter(), time.process_time()
    yield took
    if cuda:
        torch.cuda.synchronize(device)
        took["peak_cuda_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    took["wall_seconds"] = time.perf_counter() - wall
    took["cpu_seconds"] = time.process_time() - cpu
    took["peak_mb"] = peak_mb()


def peak_mb() -> float:
    """Largest resident memory of this process since the mark was last reset."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def peak_bytes() -> int:
    """Largest resident memory of this process since it began; pages of a mapped file count."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def own_memory(interval: float = 0.02) -> Iterator[list[int]]:
    """Largest memory but for mapped files, looked at every so often; [0] where it cannot be."""
    peak, done = [_anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(interval):
            peak[0] = max(peak[0], _anonymous_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _anonymous_bytes() -> int:
    lines = STATUS.read_text().splitlines() if STATUS.is_file() else []
    return sum(1024 * int(x.split()[1]) for x in lines if x.startswith("RssAnon"))


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a fresh interpreter, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def in_limited_process(limit: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a fresh interpreter, which is ended after ``limit`` seconds.

    Raises
    ------
    TimeoutError
        If there is no result by then.
    RuntimeError
        For an exception there, with its traceback, and for a process that ends without a result.
    """
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            raise TimeoutError(f"no result after {limit:.0f} s")
        try:
            result, error = receiver.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"the process ended with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise RuntimeError(error)
    return result


def _send_result(sender: Connection, function: Callable[..., Any], arguments: Any) -> None:
    try:
        sender.send((function(*arguments), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))


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
