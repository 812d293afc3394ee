"""What the uses have in common: checks of embeddings, and scores of all pairs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.image_text.losses import csd_similarity, log_inclusion

PAIRS = 2**18
"""Pairs whose dimensions are held at once."""


def check_embeddings(**named: Embedding) -> None:
    """Raise ``InputError`` unless all are embeddings of one size, and not empty."""
    for name, value in named.items():
        if not isinstance(value, Embedding):
            raise InputError(f"{name} is a {type(value).__name__}: pass an Embedding.")
        if not len(value):
            raise InputError(f"{name} is empty: pass at least one row.")
    sizes = {name: value.mean.shape[1] for name, value in named.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"embeddings differ in size: {sizes}. Pass those of one embedder.")


def check_variances(**named: Embedding) -> None:
    """Raise ``InputError`` for embeddings without variances."""
    for name, value in named.items():
        if not bool((value.variance > 0).all()):
            raise InputError(
                f"{name} has no variances: this needs an objective that learns them, as 'prolip'."
            )


def similarities(a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
    """CSD as a similarity of all pairs."""
    return csd_similarity(a.mean, a.variance.log(), b.mean, b.variance.log())


def inclusions(specific: Embedding, general: Embedding) -> Float[Tensor, "B C"]:
    """``inc(specific, general)`` of all pairs, in nats."""
    mu, log_v = general.mean, general.variance.log()
    rows = []
    step = max(1, PAIRS // len(general))
    for start in range(0, len(specific), step):
        part = specific[start : start + step]
        own = part.mean[:, None], part.variance.log()[:, None]
        rows.append(log_inclusion(*torch.broadcast_tensors(*own, mu[None], log_v[None])))
    return torch.cat(rows)
