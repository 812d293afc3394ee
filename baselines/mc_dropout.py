"""MC dropout (Gal and Ghahramani 2016): dropout stays on at test time; the spread is reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Baseline
from baselines.base.baseline import checked
from baselines.base.dropout_masks import MaskMaker, bernoulli_mask, dropout_layers, masked
from baselines.distributions.empirical import Empirical
from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count
from laplace_metric.embedding import Embedding
from laplace_metric.heads._capture import embeddings_from
from laplace_metric.inputs import ModelInput, read_batch
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import device_of
from laplace_metric.probabilistic_embedder import Draw


@dataclass(eq=False, kw_only=True)
class MCDropout(Baseline):
    """A model with ``nn.Dropout`` layers, sampled; costs ``n_samples`` forward passes.

    ``uncertainty`` is the summed variance of the draws (on the sphere: 1 - R^2 of the directions).
    ``fit`` trains nothing: the weights have to be trained with dropout before. Nothing tells fresh
    weights from trained ones, so there is no warning.

    Parameters
    ----------
    model : nn.Module
        Embedder that was trained with dropout (Warburg et al. 2023 use rate 0.2 between all
        layers).
    spherical : bool
        True, the default, compares embeddings by direction; then every draw is l2-normalised.
    n_samples : int
        Number of draws for each prediction. Default: 100.
    seed : torch.Generator or None
        Generator of the masks, which makes predictions reproducible. None, the default: torch's
        global generator.

    Raises
    ------
    HeadError
        If the model has no dropout layer.

    Examples
    --------
    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    >>> MCDropout(model, n_samples=8)(torch.ones(3, 4)).variance.shape
    torch.Size([3, 2])
    """

    n_samples: int = 100
    seed: torch.Generator | None = field(default=None, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_samples", self.n_samples)
        self._layers = dropout_layers(self.model)

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> MCDropout:
        """Find the head, which files name; there is nothing to learn after training."""
        self._fitted = self._locate_on(loader)
        return self

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return the draws of ``n_samples`` passes, with masks independent between inputs."""

        def make(_name: str, shape: tuple[int, ...], rate: float, x: Tensor) -> Tensor:
            return bernoulli_mask(shape, rate, x, self.seed)

        draws = torch.stack([self._pass(inputs, make) for _ in range(self.n_samples)])
        return checked(Embedding(Empirical(draws, self.spherical)))

    def draw(self, n: int, seed: Seed = None) -> Draw:
        """Return n thinned networks: the masks of draw s are shared by all inputs and calls."""
        check_count("n", n)
        generator = as_generator(seed)
        masks_of_draws: list[dict[str, Tensor]] = [{} for _ in range(n)]

        def pass_of(masks: dict[str, Tensor], inputs: ModelInput) -> Tensor:
            def make(name: str, shape: tuple[int, ...], rate: float, x: Tensor) -> Tensor:
                if name not in masks:
                    masks[name] = bernoulli_mask((1, *shape[1:]), rate, x, generator)
                return masks[name]

            return self._pass(inputs, make)

        return lambda inputs: torch.stack([pass_of(masks, inputs) for masks in masks_of_draws])

    def _pass(self, inputs: ModelInput, make: MaskMaker) -> Tensor:
        with masked(self._layers, make):
            inputs = to_device(read_batch("inputs", inputs), device_of(self.model))
            output = embeddings_from(self.model, inputs)
        output = at_least_float32(output)
        return nn.functional.normalize(output, dim=-1) if self.spherical else output
