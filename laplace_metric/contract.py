"""The contract of every uncertainty method: ``fit``, call, ``draw``, ``sample``, ``embed``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import Inputs, device_of, labelled_batches
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError

Draw = Callable[[Inputs], Tensor]
"""n sampled embedders at once: inputs -> [n, B, Z], the same n for every input and every call."""


class ProbabilisticEmbedder(ABC):
    """A model that returns a distribution over embeddings.

    Subclasses set ``model`` and implement ``fit``, ``__call__`` and ``draw``.
    """

    model: nn.Module

    @abstractmethod
    def fit(self, loader: Iterable[Any], *, progress: bool = True) -> ProbabilisticEmbedder:
        """Learn what the method needs from ``(inputs, labels)`` batches; returns itself."""

    @abstractmethod
    def __call__(self, inputs: Inputs) -> Embedding:
        """Distributions over the embeddings of one batch of inputs."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator | None = None) -> Draw:
        """Draw n embedders; the returned function maps any inputs to [n, B, Z] under them."""

    def sample(
        self, inputs: Inputs, n: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        """Joint draws [n, B, Z]: draw s uses the same sampled model for all inputs."""
        check_count("n", n)
        return self.draw(n, generator)(inputs)

    def embed(self, loader: Iterable[Any], *, progress: bool = True) -> tuple[Embedding, Tensor]:
        """Embeddings and labels [N] of everything a loader of ``(inputs, labels)`` yields."""
        device = device_of(self.model)
        parts, labels = [], []
        batches = labelled_batches(loader, device, progress=progress, description="Embedding")
        for inputs, batch_labels in batches:
            parts.append(self(inputs))
            labels.append(batch_labels)
        return Embedding.concatenate(parts), torch.cat(labels)


def check_count(name: str, value: int) -> None:
    """Raise ``InputError`` unless ``value`` is a whole number >= 1."""
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}: pass a whole number >= 1.")
