"""The embedder as it is: a point, with its norm (or nothing) as the uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baselines.base import OnePass
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.embedding import Embedding
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.probabilistic_embedder import Draw

SCORES = ("norm", "constant")


@dataclass(eq=False, kw_only=True)
class Deterministic(OnePass):
    """No uncertainty over the embedding; costs one forward pass.

    Parameters
    ----------
    model : nn.Module
        Embedder: inputs -> [B, Z].
    spherical : bool
        True, the default, compares embeddings by direction; then they are l2-normalised.
    score : "norm" | "constant"
        Score of an input. "norm", the default: ``uncertainty`` is ``1 / |z|`` of the head's output
        z (a short embedding is uncertain; Scott et al. 2021), in 1/units of z. "constant": 0 for
        every input.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 2)
    >>> x, y = torch.randn(6, 4), torch.arange(6) % 2
    >>> Deterministic(model).fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([6])
    """

    score: str = "norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("score", self.score, SCORES)

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> Deterministic:
        """Find the head on the first batch; nothing is learnt."""
        self._fitted = self._locate_on(loader)
        return self

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses at the model's embeddings."""
        norm = torch.linalg.vector_norm(activations.raw, dim=-1)
        score = norm.reciprocal() if self.score == "norm" else torch.zeros_like(norm)
        return self.points(activations, score)

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Return n times the same embedder."""
        check_count("n", n)
        as_generator(seed)  # an error of a bad seed

        def embed(inputs: ModelInput) -> Tensor:
            return self(inputs).mean.expand(n, -1, -1)

        return embed
