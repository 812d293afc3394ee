"""``ProbabilisticEmbedder``: the contract of every uncertainty method.

A method has ``fit``, a call that returns an ``Embedding``, ``draw``, ``sample`` and ``embed``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.keywords import named_keywords
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count
from laplace_metric.embedding import Embedding
from laplace_metric.inputs import ModelInput, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of

Draw = Callable[[ModelInput], Tensor]
"""Function of n sampled embedders: inputs -> [n, B, Z], the same n for every input and call."""


class ProbabilisticEmbedder(ABC):
    """A model that returns a distribution over embeddings.

    Subclasses set ``model`` and implement ``fit``, ``__call__`` and ``draw``.
    """

    model: nn.Module

    @abstractmethod
    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> ProbabilisticEmbedder:
        """Learn what the method needs from ``(inputs, labels)`` batches; returns itself.

        Parameters
        ----------
        loader : iterable of (inputs, labels)
            Batches to fit.
        progress : bool
            Show a progress bar. Default: False.
        """

    @abstractmethod
    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return distributions over the embeddings of one batch of inputs."""

    @abstractmethod
    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Draw n embedders; the returned function maps any inputs to [n, B, Z] under them.

        Parameters
        ----------
        n : int
            Number of draws, at least 1.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """

    @named_keywords
    def sample(self, inputs: ModelInput, n: int = 100, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return joint draws [n, B, Z]: draw s uses the same sampled model for all inputs.

        Parameters
        ----------
        inputs : one batch of inputs
            Inputs as the model takes them.
        n : int
            Number of draws, at least 1. Default: 100.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.
        """
        check_count("n", n)
        return self.draw(n, as_generator(seed))(inputs)

    def embed(self, loader: Iterable[Any], *, progress: bool = False) -> tuple[Embedding, Any]:
        """Return embeddings and labels [N] of all batches ``(inputs, labels)`` of a loader.

        Labels are a tensor of whole numbers, or an array of names where the loader has names.

        Parameters
        ----------
        loader : iterable of (inputs, labels)
            Batches to embed.
        progress : bool
            Show a progress bar. Default: False.
        """
        labelled = read_inputs("loader", loader, labelled=True)
        parts, labels, names = [], [], labelled.names
        batches = labelled_batches(
            labelled, device_of(self.model), progress=progress, description="Embedding"
        )
        for inputs, batch_labels in batches:
            parts.append(self(inputs))
            labels.append(batch_labels)
        codes = torch.cat(labels)
        if not names:
            return Embedding.concatenate(parts), codes
        named = np.array([names[code] for code in codes.tolist()], dtype=object)
        return Embedding.concatenate(parts), named
