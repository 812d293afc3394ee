"""What the core costs: ``python -m benchmarks speed --pieces speed vmf_speed``.

``speed`` writes ``results/speed.json``:

- fit: exact all-pairs fixed/arccos diagonal at N = 60,000 and 600,000 (D = 512, Z = 128, 10
  classes, features given) beside the two matrix products [N,D]x[D,Z] and [Z,N]x[N,D] of the same
  run, and the peak memory that the fit adds, each size in a process of its own;
- batch: every pair of a batch of 256 (65,536 pairs) of a 512 -> 64 head;
- embed: a small CNN with uncertainty against its plain forward pass.

``vmf_speed``: 512 samples for each of a batch of 512 directions, float32, kappa in [16, 32], as in
the controlled experiment, on two threads:

- draw: ``VonMisesFisher.sample``; angle: its rejection alone; normals: only the standard normal
  numbers that any sampler needs, by torch, on one thread;
- backward: ``rsample`` and the gradient to directions and concentrations;
- pairs: the expected likelihood of all 512 x 512 pairs with its gradient.

Times are the minimum of repeats, in seconds of wall time.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from baselines.distributions import VonMisesFisher, pairwise_log_expected_likelihood, sample_angle
from benchmarks.networks import lam_network
from benchmarks.records import write_shown
from benchmarks.timing import best, in_own_process, peak_bytes
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.curvature._batch import batch_curvature
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.models._store import FeatureStore

D, Z, N_CLASSES = 512, 128, 10


def linear_head(n_features: int, n_outputs: int) -> LinearJacobian:
    """A head with N(0, 1/D) weights and zero bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n_outputs, n_features, generator=generator) / n_features**0.5
    return LinearJacobian(weight, torch.zeros(n_outputs))


def points(n: int, n_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """N(0, 1) features and labels 0, 1, ..., 9, 0, ..."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, n_features, generator=generator), torch.arange(n) % N_CLASSES


def fit_cost(n: int) -> dict[str, Any]:
    """Peak extra memory and time of one fit, and the time of the two products."""
    (h, labels), head = points(n, D), linear_head(D, Z)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    fit = lambda: all_pairs_curvature(FeatureStore.of(h, labels), head, loss)  # noqa: E731
    few = points(2_000, D)
    all_pairs_curvature(FeatureStore.of(*few), head, loss)  # libraries load their workspaces
    before = peak_bytes()
    fit()
    extra = peak_bytes() - before
    seconds = best(fit, 5)
    z = head.forward(h)
    products = best(lambda: h @ head.weight.T, 5) + best(lambda: z.T @ h, 5)
    return {
        "n": n,
        "fit_seconds": seconds,
        "two_products_seconds": products,
        "ratio": seconds / products,
        "extra_peak_mb": extra / 1e6,
        "features_mb": h.nbytes / 1e6,
    }


def batch_cost(hessian: str) -> dict[str, Any]:
    """Every ordered pair of a batch of 256."""
    (h, labels), head = points(256, 512), linear_head(512, 64)
    loss = ContrastiveLoss.of("arccos", hessian, normalized=False)
    before = peak_bytes()
    call = lambda: batch_curvature(h, head, loss, labels=labels)  # noqa: E731
    call()
    return {
        "hessian": hessian,
        "pairs": 256**2,
        "seconds": best(call, 20),
        "extra_peak_mb": (peak_bytes() - before) / 1e6,
    }


def embed_cost(embedding_size: int) -> dict[str, Any]:
    """The LAM network on a batch of 256, with and without uncertainty."""
    torch.manual_seed(0)
    model = lam_network(embedding_size).eval()
    x, y = torch.rand(256, 1, 28, 28), torch.arange(256) % N_CLASSES
    embedder = LaplaceEmbedder(model, structure="diag").fit([(x, y)], progress=False)

    def plain() -> None:
        with torch.no_grad():
            model(x)

    def uncertain() -> torch.Tensor:
        return embedder(x).uncertainty

    pairs = [(best(plain, 4), best(uncertain, 4)) for _ in range(5)]
    forward, uncertainty = (min(times) for times in zip(*pairs, strict=True))
    return {
        "embedding_size": embedding_size,
        "forward_seconds": forward,
        "with_uncertainty_seconds": uncertainty,
        "ratio": uncertainty / forward,
    }


def run(options: Namespace) -> None:
    """Measure each case in its own process."""
    content = {
        "fit": [in_own_process(fit_cost, n) for n in (60_000, 600_000)],
        "batch": [in_own_process(batch_cost, h) for h in ("fixed", "positives", "full")],
        "embed": [in_own_process(embed_cost, size) for size in (3, 64)],
    }
    write_shown("speed", content, options)


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


def run_vmf(options: Namespace) -> None:
    """Measure on two threads."""
    torch.set_num_threads(THREADS)
    content = {
        "draw": [draw_cost(d, r) for d, r in ((10, 10), (128, 5), (1024, 3))],
        "backward": [backward_cost(d, 3) for d in (10, 128)],
        "pairs": [pair_cost(d, 3) for d in (10, 128)],
    }
    write_shown("vmf_speed", content, options)
