"""An embedder and its module, plain and as PyTorch can run them: ``speed --pieces modes``.

On the two encoders of ``export`` (EfficientNet-Lite0 and MiniLM): ``torch.compile`` of either
(inductor, defaults), bfloat16 autocast, ``torch.inference_mode``. For each, the largest error of
any number relative to the largest value of that number, against the embedder as it is; the rank
correlation of ``epistemic`` and ``uncertainty``; the least processor time of 20 calls on one
thread, with 1 and 32 inputs, which other work on the machine leaves alone; that of the first
calls, with the compiler; and how many graphs and breaks of them the compiler made.

Nothing was chosen by these numbers.
"""

from __future__ import annotations

import os
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.costs.export import NUMBERS, Case, Run, images, outputs, texts
from benchmarks.records import folder_of, write_record

SIZES, REPEATS = (1, 32), range(20)
FIELDS = ("mean", *NUMBERS)


@dataclass(frozen=True)
class Mode:
    """How an embedder or its module is called."""

    name: str
    of_module: bool
    compiled: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def autocast() -> torch.autocast:
    """bfloat16 where PyTorch finds it safe."""
    return torch.autocast("cpu", torch.bfloat16)


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "`inference_mode`": {"around": torch.inference_mode},
    "autocast": {"around": autocast},
    "`torch.compile`": {"compiled": True},
    "`torch.compile`, autocast": {"compiled": True, "around": autocast},
}
MODES = [Mode(name, which, **how) for which in (False, True) for name, how in WAYS.items()]


def run_of(case: Case, mode: Mode) -> Run:
    """Queries -> numbers by name."""
    if mode.of_module:
        module = case.embedder.as_module()
        target: Any = torch.compile(module) if mode.compiled else module
    else:
        target = torch.compile(case.embedder.__call__) if mode.compiled else case.embedder

    def run(x: Any) -> dict[str, Tensor]:
        with mode.around(), torch.no_grad():
            if not mode.of_module:
                seen = target(x)
            else:
                given = case.tensors(x)
                seen = target(*given.values()) if "input" in given else target(**given)
            return {name: getattr(seen, name).clone() for name in FIELDS}

    return run


def processor_seconds(run: Run, x: Any) -> float:
    """Of one call, by all threads of this process."""
    start = time.process_time()
    run(x)
    return time.process_time() - start


def row_of(case: Case, mode: Mode, truth: dict[str, Tensor]) -> dict[str, Any]:
    """One way to call it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    row: dict[str, Any] = {"encoder": case.name, "of": "module" if mode.of_module else "embedder"}
    run, before = run_of(case, mode), sum(os.times()[:4])
    for n in SIZES:
        run(case.queries[0][:n])
    row |= {"what": mode.name, "first_calls": sum(os.times()[:4]) - before}
    for n in SIZES:
        row[f"ms_{n}"] = 1e3 * min(processor_seconds(run, case.queries[0][:n]) for _ in REPEATS)
    found = outputs(run, case.queries)
    for name in FIELDS:
        gap = (found[name].float() - truth[name]).abs().max() / truth[name].abs().max()
        row[f"error_{name}"] = float(gap)
    for name in NUMBERS:
        row[f"spearman_{name}"] = float(spearmanr(found[name].float(), truth[name]).statistic)
    counters = torch._dynamo.utils.counters
    row["graphs"] = counters["stats"]["unique_graphs"]
    row["breaks"] = sum(counters["graph_break"].values())
    print(row, flush=True)
    return row


def run(options: Namespace) -> None:
    """Both encoders."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = []
        for case in (texts(), images(options.data)):
            truth = outputs(run_of(case, MODES[0]), case.queries)
            rows += [row_of(case, mode, truth) for mode in MODES]
    print(write_record("modes", {"rows": rows}, folder_of(options)).name)
