"""A wide head on one device: ``python -m benchmarks.scale.device [--device cuda]``.

N = 1,000,000 points, D = 768, Z = 512, made on the device: the fit, 10,000 embeddings with their
uncertainty, 100 joint samples of them. Beside the times, the rate of the operations that cannot be
done without (``operations``) and of the bytes that cannot stay unread (``bytes``), as shares of the
device's own product and copy in the same run. Making the points is measured alone and taken off.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.scale.common import (
    SMALL,
    Points,
    Problem,
    Row,
    best,
    matmul_rates,
    parser,
    peak_bytes,
    seconds,
    show,
    wait,
    write_part,
)
from benchmarks.scale.points import drain
from laplace_metric import LaplaceEmbedder


@dataclass(frozen=True)
class Budget:
    """Points, embeddings, samples; the features stay in memory up to ``memory_bytes``."""

    problem: Problem
    n: int = 1_000_000
    embedded: int = 10_000
    samples: int = 100
    repeats: int = 3
    product: int = 4_096
    memory_bytes: int = 2**33


BUDGETS = {
    "full": Budget(Problem(768, 512)),
    "smoke": Budget(SMALL, 2_000, 200, 5, 2, 128),
}


def device_cost(structure: str, device: str, rates: Row, budget: Budget) -> Row:
    """One structure: fit, embed, sample."""
    problem = budget.problem
    d, z, few = problem.n_features, problem.n_outputs, budget.embedded
    points = Points(budget.n, problem, device)
    embedder = LaplaceEmbedder(problem.model(device), structure=structure)
    options = {"progress": False, "memory_bytes": budget.memory_bytes}
    x = torch.cat([x for x, _ in Points(few, problem, device)])
    draw = lambda: embedder.draw(budget.samples)(x)  # noqa: E731
    drain(Points(problem.batch, problem, device))  # libraries load
    making = seconds(lambda: drain(points), device)[0]
    fitting = seconds(lambda: embedder.fit(points, **options), device)[0] - making  # type: ignore[arg-type]
    embedding = best(lambda: embedder(x).uncertainty, budget.repeats, device)
    sampling = best(draw, budget.repeats, device)
    seen = 2 * d**2 if structure == "kron" else 0  # inputs in their eigenbasis, or its matrix
    work = {
        "fit": (fitting, budget.n * (4 * d * z + seen), 8 * budget.n * d),
        "embed": (embedding, few * (4 * d * z + seen), 4 * few * d),
        "sample": (sampling, 2 * budget.samples * few * d * z, 4 * budget.samples * few * z),
    }
    measured = {name: shares(*numbers, rates) for name, numbers in work.items()}
    return {"structure": structure, "n": budget.n, "making_seconds": making, **measured}


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


def copy_rate(size: int, device: str) -> float:
    """10^9 bytes a second, read and written both counted."""
    a = torch.ones(16 * size * size, device=device)
    b: Tensor = torch.empty_like(a)
    return 2 * a.nbytes / best(lambda: b.copy_(a), 5, device) / 1e9


def peak(device: str) -> Row:
    """Largest memory so far: the device's own where it has some."""
    if device.startswith("cuda"):
        return {"device_peak_mb": torch.cuda.max_memory_allocated(device) / 1e6}
    return {"peak_mb": peak_bytes() / 1e6}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    budget, device = BUDGETS[options.budget], options.device
    rates = matmul_rates(budget.product, device)
    rates["copy_gb_per_second"] = copy_rate(budget.product // 4, device)
    rows = []
    for structure in ("diag", "kron"):
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        rows.append(show({**device_cost(structure, device, rates, budget), **peak(device)}))
        wait(device)
    kind = "cuda" if device.startswith("cuda") else device
    write_part(f"device {kind}", {"device": kind, "rates": rates, "rows": rows}, options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    found = parser("device", __doc__)
    found.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0")
    return found.parse_args(arguments)


if __name__ == "__main__":
    main()
