"""Vectors with labels as data may bring them, and detectors that look at them as they are."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from baselines.base import Detector


@st.composite
def labelled_points(draw: Any, *, least: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Float64 vectors [N, Z], labels [N] of two classes or more, and others [Q, Z].

    Classes are unbalanced, with one-member classes among them; some rows are copies of others (of
    one class or of two), some are zero, and lengths differ by orders of magnitude.
    """
    z, n = draw(st.integers(1, 5)), draw(st.integers(least, 24))
    n_classes = draw(st.integers(2, min(5, n - 1)))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shares = torch.rand(n_classes, generator=g, dtype=torch.float64).pow(4) + 1e-3
    rest = torch.multinomial(shares, n - n_classes, replacement=True, generator=g)
    labels = torch.cat([torch.arange(n_classes), rest])[torch.randperm(n, generator=g)]
    x = torch.randn(n, z, generator=g, dtype=torch.float64) + labels[:, None]
    x = x * 10 ** torch.empty(n, 1, dtype=torch.float64).uniform_(-1, 1, generator=g)
    if draw(st.booleans()):
        x[1], x[2] = x[0], x[0]
    if draw(st.booleans()):
        x[3] = 0
    queries = 3 * torch.randn(4, z, generator=g, dtype=torch.float64)
    return x, labels, torch.cat([queries, x[:2], torch.zeros(1, z, dtype=torch.float64)])


def on_vectors(kind: type[Detector], x: Tensor, labels: Tensor, **settings: Any) -> Detector:
    """A detector of these vectors: its model is the identity."""
    identity = nn.Linear(x.shape[1], x.shape[1], bias=False).to(x.dtype)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(x.shape[1]))
    settings.setdefault("spherical", False)
    return kind(identity, **settings).fit([(x, labels)], progress=False)
