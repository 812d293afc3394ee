"""Random embeddings, and loops that say what the uses compute."""

from __future__ import annotations

import torch

from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding


def random_embedding(n: int, d: int, seed: int, spread: float = 1.0) -> Embedding:
    """Unit means and variances of all sizes, float64."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)
    log_v = spread * torch.randn(n, d, generator=g, dtype=torch.float64) - 3
    return Embedding(Gaussian(mu, log_v.exp()))


def certain(embedding: Embedding) -> Embedding:
    """The same means without variances."""
    return Embedding(Gaussian(embedding.mean, torch.zeros_like(embedding.mean)))
