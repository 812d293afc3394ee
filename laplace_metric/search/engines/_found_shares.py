"""How many of the vectors that it holds, and of their nearest, a search finds."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.search.engines._engine import Engine

CHECKED, NEAREST = 200, 10
"""Stored vectors that a search is asked for, and how many neighbours of each."""


def spread_rows(n_rows: int, n: int) -> Int[Tensor, " n"]:
    """Return n of the row numbers, or all, evenly spread."""
    return torch.linspace(0, n_rows - 1, min(n, n_rows), dtype=torch.float64).long()


def gaps_of(engine: Engine, vectors: Tensor, asked: Tensor, k: int) -> Tensor:
    """Return the distances [n, k] of the vectors that a search finds for n that are asked."""
    found = engine.search(asked, min(k, len(vectors))).to(vectors.device)
    gaps = (vectors[found.clamp_min(0)] - asked[:, None]).norm(dim=2)
    return gaps.masked_fill(found < 0, torch.inf)


def shares_found(engine: Engine, exact: Engine, vectors: Tensor) -> tuple[float, float]:
    """Return the shares of stored vectors [N, D], and of their nearest, that a search finds."""
    rows = spread_rows(len(vectors), CHECKED)
    gaps, nearest = (gaps_of(each, vectors, vectors[rows], NEAREST) for each in (engine, exact))
    itself = gaps[:, 0].square() <= 0.1 * vectors.var(0).sum()
    near = gaps <= 1.001 * nearest[:, -1:]
    return float(itself.double().mean()), float(near.double().mean())
