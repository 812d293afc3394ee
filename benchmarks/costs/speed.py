"""What the core costs: ``python -m benchmarks speed --pieces speed`` -> ``results/speed.json``.

- fit: exact all-pairs fixed/arccos diagonal at N = 60,000 and 600,000 (D = 512, Z = 128, 10
  classes, features given) beside the two matrix products [N,D]x[D,Z] and [Z,N]x[N,D] of the same
  run, and the peak memory that the fit adds, each size in a process of its own;
- batch: every pair of a batch of 256 (65,536 pairs) of a 512 -> 64 head;
- embed: a small CNN with uncertainty against its plain forward pass.
Times are the minimum of repeats, in seconds of wall time.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

from benchmarks.networks import lam_network
from benchmarks.records import write_shown
from benchmarks.timing import best, in_own_process, peak_bytes
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss, all_pairs_curvature, batch_curvature
from laplace_metric.models.features import FeatureStore
from laplace_metric.models.jacobians import LinearJacobian

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
