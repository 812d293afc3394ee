"""What a piece of work took: wall and CPU seconds, peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
