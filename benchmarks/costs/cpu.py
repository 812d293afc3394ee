"""CPU seconds of one thread."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from laplace_metric.errors import LaplaceMetricWarning


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of one call, with one thread and without the package's warnings."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        begin = time.process_time()
        call()
        return time.process_time() - begin


def in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, after one round to warm up."""
    rounds = [{k: cpu_seconds(call) for k, call in calls.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(row[name] for row in rounds[1:]) for name in calls}
