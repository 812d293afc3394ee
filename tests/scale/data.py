"""Small problems that every test of this folder fits, also in processes of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder

N, D, Z = 240, 7, 4


def points(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Clusters of unequal size; class 9 has one point, class 3 lives at the end only."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (N,), generator=g)
    labels[-40:] = 3
    labels[5] = 9
    centres = 2 * torch.randn(10, D, generator=g, dtype=torch.float64)
    h = centres[labels] + torch.randn(N, D, generator=g, dtype=torch.float64)
    return h.to(dtype), labels


def network(dtype: torch.dtype = torch.float64, *, deep: bool = False) -> nn.Module:
    """A linear head, or three layers; the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, Z)] if deep else [nn.Linear(D, Z)]
        return nn.Sequential(*layers).to(dtype)


def batches(
    size: int = 50, part: slice = slice(None), dtype: torch.dtype = torch.float64
) -> list[tuple[Tensor, Tensor]]:
    """A loader of some of the points."""
    h, labels = (x[part] for x in points(dtype))
    return list(zip(h.split(size), labels.split(size), strict=True)) if len(h) else []


def embedder(
    dtype: torch.dtype = torch.float64, *, deep: bool = False, **settings
) -> LaplaceEmbedder:
    model = network(dtype, deep=deep)
    return LaplaceEmbedder(model, head=model if deep else None, **settings)


def covariances(fitted: LaplaceEmbedder) -> Tensor:
    """Of the raw embeddings of some points: what does not depend on signs of eigenvectors."""
    h, _ = points(next(fitted.model.parameters()).dtype)
    return fitted(h[:20]).distribution.covariance.dense()


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest entry."""
    return float((a - b).abs().max() / b.abs().max())
