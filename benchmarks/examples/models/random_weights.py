"""An architecture whose weights are random: shapes and times, which do not depend on them."""

from __future__ import annotations

import time
from typing import Any

import torch

from laplace_metric import LaplaceEmbedder


def look(title: str, embedder: LaplaceEmbedder, inputs: Any, n: int) -> str:
    """Fit on one batch of n inputs of two classes, embed it, say what came out."""
    labels = torch.arange(n) % 2
    start = time.perf_counter()
    embedder.fit([(inputs, labels)], progress=False)
    fitted = time.perf_counter()
    embedding = embedder(inputs)
    variance = embedding.variance
    called = time.perf_counter()
    return (
        f"{title}: weights are random, so only shapes and times are shown\n"
        f"  head            {embedder.head_.name!r}, {embedder.posterior_.mean.numel():,} weights\n"
        f"  mean, variance  {list(embedding.mean.shape)}, {list(variance.shape)}\n"
        f"  fit, call       {fitted - start:.2f} s, {called - fitted:.2f} s for {n} inputs"
    )
