"""The embedder as it is: a point, with its norm (or nothing) as the uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import Inputs, device_of, labelled_batches, to_device
from laplace_metric.contract import Draw, ProbabilisticEmbedder, check_count
from laplace_metric.distributions import Empirical
from laplace_metric.embedding import Embedding
from laplace_metric.errors import NotFittedError, UnknownNameError
from laplace_metric.heads import Head, capture, find_head
from laplace_metric.jacobians import at_least_float32

SCORES = ("norm", "constant")


class Deterministic(ProbabilisticEmbedder):
    """No uncertainty over the embedding; costs one forward pass.

    Parameters
    ----------
    model : nn.Module
    spherical : bool
        Whether embeddings are compared by direction; then they are l2-normalised.
    score : "norm" | "constant"
        ``uncertainty`` is ``1 / |z|`` of the head's output z (a short embedding is unsure;
        Scott et al. 2021), in 1/units of z, or 0 for every input.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> x, y = torch.randn(6, 4), torch.arange(6) % 2
    >>> Deterministic(model).fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([6])
    """

    def __init__(self, model: nn.Module, *, spherical: bool = True, score: str = "norm") -> None:
        if score not in SCORES:
            raise UnknownNameError("score", score, SCORES)
        self.model, self.spherical, self.score = model, spherical, score
        self._head: Head | None = None

    def fit(self, loader: Iterable[Any], *, progress: bool = True) -> Deterministic:
        """Find the head on the first batch; nothing is learnt."""
        batches = labelled_batches(
            loader, device_of(self.model), progress=False, description="Fitting"
        )
        self._head = find_head(self.model, next(batches)[0])
        return self

    def __call__(self, inputs: Inputs) -> Embedding:
        """Point masses at the model's embeddings."""
        if self._head is None:
            raise NotFittedError("this Deterministic is not fitted: call fit(loader) first.")
        seen = capture(self.model, self._head, to_device(inputs, device_of(self.model)))
        z = at_least_float32(seen.raw)
        mean = at_least_float32(seen.output)
        if self.spherical:
            mean = nn.functional.normalize(mean, dim=-1)
        norm = torch.linalg.vector_norm(z, dim=-1)
        score = norm.reciprocal() if self.score == "norm" else torch.zeros_like(norm)
        return Embedding(Empirical(mean[None], self.spherical), score)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Draw:
        """n times the same embedder."""
        check_count("n", n)

        def embed(inputs: Inputs) -> Tensor:
            return self(inputs).mean.expand(n, -1, -1)

        return embed
