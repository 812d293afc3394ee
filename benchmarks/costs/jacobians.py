"""What a dense diagonal costs: ``python -m benchmarks speed --pieces jacobians``.

``diag(sum_i J_i^T B_i J_i)`` of 256 points and 128 outputs, with B [256, 128, 128] symmetric and of
any sign, by every backend that takes the head. Beside it the whole fixed/arccos curvature of the
same head and batch (10 classes), whose blocks have a structure that the fit uses.

One thread, each case in a process of its own; times are the minimum of repeats, in CPU seconds.
``torch.func`` is measured on 16 points and its time scaled to 256. Every result is compared with a
float64 reference on the first 16 points: by the closed form, or by ``torch.func`` where there is
none.
nnj is not on the package index: its rows appear if it can be imported.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.costs.speed import N_CLASSES
from benchmarks.records import folder_of, write_record
from benchmarks.timing import in_own_process
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._batch import batch_curvature
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._chain import ChainJacobian

N, D, Z = 256, 512, 128
FEW = 16
"""Points for the comparison, and for what is too slow for all of them."""
HEADS: dict[str, Callable[[Any], nn.Module]] = {
    "linear 512-128": lambda p: p.Linear(D, Z),
    "MLP 512-512-128": lambda p: p.Sequential(p.Linear(D, D), p.ReLU(), p.Linear(D, Z)),
    "linear 512-128, batch norm": lambda p: p.Sequential(p.Linear(D, Z), p.BatchNorm1d(Z)),
}
BACKENDS = ("analytic", "backpack", "nnj", "torch.func")


def head_of(name: str, backend: str) -> nn.Module:
    """The head built from nnj's modules or torch's, with the same weights."""
    torch.manual_seed(0)
    module = HEADS[name](importlib.import_module("nnj") if backend == "nnj" else nn)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean = torch.randn(Z)
            part.running_var = torch.rand(Z) + 0.5
    return module.eval()


def fits(name: str, backend: str) -> bool:
    """Whether the backend takes the head, and is installed."""
    if backend == "nnj":
        return "batch norm" not in name and importlib.util.find_spec("nnj") is not None
    module = HEADS[name](nn)
    return backend != "analytic" or type(module) is nn.Linear or ChainJacobian.fits(module)


def problem() -> tuple[Tensor, Tensor]:
    """h [N, D] and symmetric B [N, Z, Z]."""
    generator = torch.Generator().manual_seed(1)
    b = torch.randn(N, Z, Z, generator=generator)
    return torch.randn(N, D, generator=generator), b + b.mT


def measured(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """CPU time, and the memory that the first call adds to what is in use (Linux alone tells)."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
    before = status_bytes("VmRSS")
    call()
    extra = status_bytes("VmHWM") - before
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return {"cpu_seconds": min(times), "extra_peak_mb": extra / 1e6}


def status_bytes(field: str) -> int:
    """VmRSS, the resident memory of this process, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def dense_cost(name: str, backend: str) -> dict[str, Any]:
    """``diagonal(h, B)`` by one backend, and its largest error over the largest entry."""
    torch.set_num_threads(1)
    (h, b), head = problem(), jacobian_of(head_of(name, backend), Z, backend)
    head.diagonal(h[:1], b[:1])  # libraries load their workspaces
    n = FEW if backend == "torch.func" else N
    cost = measured(lambda: head.diagonal(h[:n], b[:n]), 10 if backend == "analytic" else 3)
    cost["cpu_seconds"] *= N / n
    known = "analytic" if fits(name, "analytic") else "torch.func"
    reference = jacobian_of(head_of(name, known).double(), Z, known)
    expected = reference.diagonal(h[:FEW].double(), b[:FEW].double())
    error = float((head.diagonal(h[:FEW], b[:FEW]) - expected).abs().max() / expected.abs().max())
    row = {"head": name, "backend": backend, "measured_points": n, **cost}
    return {**row, "relative_difference": error}


def structured_cost(name: str) -> dict[str, Any]:
    """The fixed/arccos curvature of the batch, as ``fit`` computes it."""
    torch.set_num_threads(1)
    h, head = problem()[0], jacobian_of(head_of(name, "analytic"), Z, "analytic")
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    labels = torch.arange(N) % N_CLASSES
    few = slice(2 * N_CLASSES)
    batch_curvature(h[few], head, loss, labels=labels[few])
    cost = measured(lambda: batch_curvature(h, head, loss, labels=labels), 10)
    return {"head": name, "measured_points": N, **cost}


def run(options: Namespace) -> None:
    """Every head and backend, on one thread."""
    torch.set_num_threads(1)
    cases = [(name, backend) for name in HEADS for backend in BACKENDS if fits(name, backend)]
    dense = [in_own_process(dense_cost, *case) for case in cases]
    fixed = [in_own_process(structured_cost, name) for name in HEADS if fits(name, "analytic")]
    for row in (*dense, *fixed):
        print(row)
    content = {"points": N, "dense": dense, "fixed_arccos": fixed}
    print(write_record("jacobians", content, folder_of(options)).name)
