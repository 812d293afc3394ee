"""Shared parts of von Mises-Fisher methods: a direction with a concentration, losses over draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from baselines.base.heads import ConcentrationHead, NormConcentration
from baselines.base.pairs import check_rows
from baselines.base.parts import Sizes
from baselines.base.settings import check_counts, check_positive
from baselines.base.trained import Trained
from baselines.distributions import Directions, VonMisesFisher
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations

CONCENTRATIONS = ("head", "norm")


@dataclass(eq=False, kw_only=True)
class Directional(Trained):
    """``vMF(mu, kappa)`` for each input: mu is the direction of the raw embedding z.

    Costs one forward pass and a small head. ``uncertainty`` is 1 / kappa.

    Parameters
    ----------
    concentration : "head" | "norm"
        Source of kappa: "head", the default, is a 3-layer perceptron on the features (Kirchhof et
        al. 2023b); "norm" is c |z| (2023a).
    initial_concentration : float > 0 or None
        Initial kappa. None, the default: the larger of 16 and Z (at Z, draws have a mean of length
        0.62).
    hidden : int
        Width of the perceptron. Default: 128.
    """

    concentration: str = "head"
    initial_concentration: float | None = None
    hidden: int = 128

    positive: ClassVar[tuple[str, ...]] = ()
    """Settings of a subclass that are numbers above 0."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Settings of a subclass that are whole numbers above 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("concentration", self.concentration, CONCENTRATIONS)
        if self.initial_concentration is not None:
            check_positive(self, "initial_concentration")
        check_positive(self, *self.positive)
        check_counts(self, "hidden", *self.counts)
        if not self.spherical:
            raise InputError("spherical=False: a von Mises-Fisher embedding is a direction.")

    @abstractmethod
    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return ``loss(embeddings, labels, concentration)``."""

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the network that predicts kappa, and the loss."""
        initial = self.initial_concentration or max(16.0, sizes.embedding)
        if self.concentration == "norm":
            head: nn.Module = NormConcentration(initial)
        else:
            head = ConcentrationHead(sizes.features, initial=initial, hidden=self.hidden)
        return {"concentration": head, "loss": self.make_loss(sizes)}

    def kappa(self, activations: HeadActivations) -> Tensor:
        """Return the concentration of each input [B]."""
        source = activations.raw if self.concentration == "norm" else activations.features
        return self.parts["concentration"](source)

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of directions, class numbers [B] and concentrations."""
        return self.parts["loss"](self.means(activations), labels, self.kappa(activations))

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return vMF distributions; 1 / kappa [B] is the uncertainty."""
        kappa = self.kappa(activations)
        return Embedding(Directions(self.means(activations), kappa), kappa.reciprocal())


class SampledLoss(nn.Module, ABC):
    """``loss(embeddings, labels, concentration)`` from draws; subclasses define ``of_draws``.

    Parameters
    ----------
    n_samples : int
        Number S of draws of each embedding; gradients reach directions and concentrations through
        them.

    Raises
    ------
    InputError
        If the arguments differ in length.
    """

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        check_count("n_samples", n_samples)
        self.n_samples = n_samples

    @abstractmethod
    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Map draws [S, B, Z] and labels [B] to a scalar, in nats."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        concentration: Tensor,
        seed: torch.Generator | None = None,
    ) -> Tensor:
        """Map directions [B, Z] (of any length) and concentrations [B] to a scalar, in nats."""
        check_rows(embeddings, labels, concentration=concentration)
        mu = nn.functional.normalize(embeddings, dim=-1)
        p = VonMisesFisher(mu, concentration, validate_args=False)
        return self.of_draws(p.rsample((self.n_samples,), seed=seed), labels)
