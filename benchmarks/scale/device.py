"""A wide head on one device: ``python -m benchmarks scale --pieces device [--device cuda]``.

N = 1,000,000 points, D = 768, Z = 512, made on the device: the fit, 10,000 embeddings with their
uncertainty, 100 joint samples of them. Beside the times, the rate of the operations that cannot be
done without (``operations``) and of the bytes that cannot stay unread (``bytes``), as shares of the
device's own product and copy in the same run. Making the points is measured alone and taken off.
"""

from __future__ import annotations

from argparse import Namespace

import torch

from benchmarks.scale.common import Points, Row, show, write_piece
from benchmarks.scale.points import drain
from benchmarks.sizes import SCALE, ScaleSize
from benchmarks.timing import best, matmul_rates, peak_bytes, seconds, wait
from laplace_metric import LaplaceEmbedder


def device_cost(structure: str, device: str, rates: Row, size: ScaleSize) -> Row:
    """One structure: fit, embed, sample."""
    problem, (n, *_) = size.problem, size.n
    d, z, few = problem.n_features, problem.n_outputs, size.embedded
    points = Points(n, problem, device)
    embedder = LaplaceEmbedder(problem.model(device), structure=structure)
    options = {"progress": False, "memory_bytes": size.memory_bytes}
    x = torch.cat([x for x, _ in Points(few, problem, device)])
    draw = lambda: embedder.draw(size.samples)(x)  # noqa: E731
    drain(Points(problem.batch, problem, device))  # libraries load
    making = seconds(lambda: drain(points), device)[0]
    fitting = seconds(lambda: embedder.fit(points, **options), device)[0] - making  # type: ignore[arg-type]
    embedding = best(lambda: embedder(x).uncertainty, size.repeats, device)
    sampling = best(draw, size.repeats, device)
    eigenbasis = 2 * d**2 if structure == "kron" else 0  # inputs in their eigenbasis, or its matrix
    work = {
        "fit": (fitting, n * (4 * d * z + eigenbasis), 8 * n * d),
        "embed": (embedding, few * (4 * d * z + eigenbasis), 4 * few * d),
        "sample": (sampling, 2 * size.samples * few * d * z, 4 * size.samples * few * z),
    }
    measured = {name: shares(*numbers, rates) for name, numbers in work.items()}
    return {"structure": structure, "n": n, "making_seconds": making, **measured}


def shares(taken: float, operations: int, size: int, rates: Row) -> Row:
    """Seconds, and the shares of what the device can do."""
    return {
        "seconds": taken,
        "operations": operations,
        "bytes": size,
        "share_of_float32_product": operations / taken / 1e9 / rates["float32_gflops"],
        "share_of_float64_product": operations / taken / 1e9 / rates["float64_gflops"],
        "share_of_copy": size / taken / 1e9 / rates["copy_gb_per_second"],
    }


def run(options: Namespace) -> None:
    """Both structures on one device."""
    size, device = SCALE["device"][options.size], str(options.device)
    rates = matmul_rates(size.product, device)
    a = torch.ones(size.product**2, device=device)
    b = torch.empty_like(a)
    copying = best(lambda: b.copy_(a), 5, device)  # read and written both counted
    rates["copy_gb_per_second"] = 2 * a.nbytes / copying / 1e9
    cuda = device.startswith("cuda")
    rows = []
    for structure in ("diag", "kron"):
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        row = device_cost(structure, device, rates, size)
        peak = torch.cuda.max_memory_allocated(device) if cuda else peak_bytes()
        rows.append(show({**row, "device_peak_mb" if cuda else "peak_mb": peak / 1e6}))
        wait(device)
    kind = "cuda" if cuda else device
    write_piece(f"device {kind}", {"device": kind, "rates": rates, "rows": rows}, options)
