"""What the von Mises-Fisher methods share: a direction with a concentration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base.checks import check_counts, check_positive
from baselines.base.concentration import ConcentrationHead
from baselines.base.fitted import Sizes
from baselines.base.trained import Trained
from laplace_metric.distributions import Directions
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.models.heads import HeadActivations

CONCENTRATIONS = ("head", "norm")


class NormConcentration(nn.Module):
    """``kappa = c |z|`` of the raw embedding; the first batch sets c for a mean of ``initial``.

    Examples
    --------
    >>> NormConcentration(16.0)(torch.tensor([[3.0, 4.0]]))
    tensor([16.0010], grad_fn=<AddBackward0>)
    """

    smallest = 1e-3
    started: Tensor

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, raw: Tensor) -> Tensor:
        """[B, Z] -> [B]."""
        norm = torch.linalg.vector_norm(raw, dim=-1)
        if not self.started:
            with torch.no_grad():
                self.log_scale.copy_((self.initial / norm.mean()).log())
                self.started.fill_(True)
        return self.log_scale.exp() * norm + self.smallest


@dataclass(eq=False, kw_only=True)
class Directional(Trained):
    """``vMF(mu, kappa)`` for each input: mu is the direction of the raw embedding z.

    Costs one forward pass and a small head. ``uncertainty`` is 1 / kappa.

    Parameters
    ----------
    concentration : "head" | "norm"
        kappa from a 3-layer perceptron on the features (Kirchhof et al. 2023b), or c |z| (2023a).
    initial_concentration : float > 0 or None
        Where kappa starts; None: the larger of 16 and Z (at Z, draws have a mean of length 0.62).
    hidden : int
        Width of the perceptron.
    """

    concentration: str = "head"
    initial_concentration: float | None = None
    hidden: int = 128

    def __post_init__(self) -> None:
        if self.concentration not in CONCENTRATIONS:
            raise UnknownNameError("concentration", self.concentration, CONCENTRATIONS)
        if self.initial_concentration is not None:
            check_positive(self, "initial_concentration")
        check_counts(self, "hidden")
        if not self.spherical:
            raise InputError("spherical=False: a von Mises-Fisher embedding is a direction.")

    @abstractmethod
    def make_loss(self, sizes: Sizes) -> nn.Module:
        """``loss(embeddings, labels, concentration)``."""

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        initial = self.initial_concentration or max(16.0, sizes.embedding)
        if self.concentration == "norm":
            head: nn.Module = NormConcentration(initial)
        else:
            head = ConcentrationHead(sizes.features, initial=initial, hidden=self.hidden)
        return {"concentration": head, "loss": self.make_loss(sizes)}

    def kappa(self, seen: HeadActivations) -> Tensor:
        """[B]."""
        source = seen.raw if self.concentration == "norm" else seen.features
        return self.parts["concentration"](source)

    def objective(self, seen: HeadActivations, labels: Tensor) -> Tensor:
        return self.parts["loss"](self.means(seen), labels, self.kappa(seen))

    def embedding(self, seen: HeadActivations) -> Embedding:
        kappa = self.kappa(seen)
        return Embedding(Directions(self.means(seen), kappa), kappa.reciprocal())
