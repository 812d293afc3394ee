"""What vMF draws cost: ``benchmarks speed --pieces vmf_speed`` -> ``vmf_speed.json``.

512 samples for each of a batch of 512 directions, float32, kappa in [16, 32], as in the controlled
experiment. Times are the minimum of repeats, in seconds of wall time, on two threads:

- draw: ``VonMisesFisher.sample``; angle: its rejection alone; normals: only the standard normal
  numbers that any sampler needs, by torch, on one thread;
- backward: ``rsample`` and the gradient to directions and concentrations;
- pairs: the expected likelihood of all 512 x 512 pairs with its gradient.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.records import write_shown
from benchmarks.timing import best
from laplace_metric.distributions import (
    VonMisesFisher,
    pairwise_log_expected_likelihood,
    sample_angle,
)

SAMPLES, BATCH, THREADS = 512, 512, 2


def parameters(dimension: int) -> tuple[Tensor, Tensor]:
    """Random directions [512, D] and concentrations in [16, 32]."""
    generator = torch.Generator().manual_seed(0)
    loc = torch.nn.functional.normalize(torch.randn(BATCH, dimension, generator=generator), dim=-1)
    return loc, 16 + 16 * torch.rand(BATCH, generator=generator)


def fill_normals(dimension: int) -> None:
    """As many standard normal numbers as a draw has, in a block that stays in the cache."""
    block = torch.empty(1 << 17)
    for _ in range(SAMPLES * BATCH * dimension // len(block)):
        block.normal_()


def draw_cost(dimension: int, repeats: int) -> dict[str, Any]:
    """Of one draw of 512 x 512 vectors, and of its parts."""
    loc, kappa = parameters(dimension)
    generator = torch.Generator().manual_seed(1)
    p = VonMisesFisher(loc, kappa, validate_args=False)
    wide = kappa.expand(SAMPLES, BATCH)
    return {
        "dimension": dimension,
        "draw_seconds": best(lambda: p.sample((SAMPLES,), generator), repeats),
        "angle_seconds": best(lambda: sample_angle(wide, dimension, generator), repeats),
        "normals_one_thread_seconds": best(lambda: fill_normals(dimension), repeats),
    }


def backward_cost(dimension: int, repeats: int) -> dict[str, Any]:
    """Of a draw with its gradient."""
    loc, kappa = (x.requires_grad_() for x in parameters(dimension))
    generator = torch.Generator().manual_seed(1)

    def step() -> None:
        p = VonMisesFisher(loc, kappa, validate_args=False)
        torch.autograd.grad(p.rsample((SAMPLES,), generator).square().sum(), (loc, kappa))

    return {"dimension": dimension, "seconds": best(step, repeats)}


def pair_cost(dimension: int, repeats: int) -> dict[str, Any]:
    """Of all pairs with their gradient."""
    loc, kappa = (x.requires_grad_() for x in parameters(dimension))

    def step() -> None:
        p = VonMisesFisher(loc, kappa, validate_args=False)
        torch.autograd.grad(pairwise_log_expected_likelihood(p, p).sum(), (loc, kappa))

    return {"dimension": dimension, "pairs": BATCH**2, "seconds": best(step, repeats)}


def run(options: Namespace) -> None:
    """Measure on two threads."""
    torch.set_num_threads(THREADS)
    content = {
        "draw": [draw_cost(d, r) for d, r in ((10, 10), (128, 5), (1024, 3))],
        "backward": [backward_cost(d, 3) for d in (10, 128)],
        "pairs": [pair_cost(d, 3) for d in (10, 128)],
    }
    write_shown("vmf_speed", content, options)
