"""Contrastive learning with an explicit concentration (unnormalised vMF, l2-regularised).

For each positive pair, with cos_ij = mu_i.mu_j,

    loss = mean_ij [ -l_a (k_i + k_j) cos_ij + l_r (k_i^2 + k_j^2) ] + base(mu)

(eqs. 6, 10 and 11). For fixed directions its minimum is k = l_a cos / (2 l_r): k is a regression of
the cosine of two views. The normaliser of the von Mises-Fisher density is left out on purpose, so k
is a certainty, not the concentration of a likelihood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from baselines.base import Directional, Sizes
from baselines.base.pairs import check_rows, positive_pairs
from baselines.base.view_losses import BYOLLoss, SimSiamLoss, SwAVLoss
from baselines.infonce import InfoNCELoss
from laplace_metric._utils.validation import check_name
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models._call_model import call_model
from laplace_metric.training import Callback, Progress

BASES = ("simclr", "simsiam", "byol", "swav")


class ExplicitConcentrationLoss(nn.Module):
    """``loss(embeddings, labels, concentration)``.

    Parameters
    ----------
    base : nn.Module
        Contrastive loss ``base(embeddings, labels)``.
    align, regularize : float >= 0
        Weights l_a and l_r of the alignment and of the pull to zero; 0.05 and 0.005 in the paper.

    Examples
    --------
    >>> loss = ExplicitConcentrationLoss(InfoNCELoss(inverse_temperature=2.0))
    >>> z, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> loss(z, y, torch.ones(4)) - loss.base(z, y)  # cosine 0: 0.005 (1 + 1)
    tensor(0.0100)
    """

    def __init__(self, base: nn.Module, *, align: float = 0.05, regularize: float = 0.005) -> None:
        super().__init__()
        self.base, self.align, self.regularize = base, align, regularize

    def forward(
        self, embeddings: Tensor, labels: Tensor, concentration: Tensor, **base: Any
    ) -> Tensor:
        """Map embeddings [B, Z] and k [B] to a scalar; further arguments go to the base loss."""
        check_rows(embeddings, labels, concentration=concentration)
        i, j = positive_pairs(labels)
        k, mu = concentration, nn.functional.normalize(embeddings, dim=-1)
        cosine = (mu[i] * mu[j]).sum(-1)
        aligned = self.align * (k[i] + k[j]) * cosine
        squared = self.regularize * (k[i].square() + k[j].square())
        return (squared - aligned).mean() + self.base(embeddings, labels, **base)


class MovingTarget(Callback):
    """BYOL's target: an exponential moving average of the network, one update a step."""

    def __init__(self, model: nn.Module, momentum: float) -> None:
        self.model = model
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(momentum))

    @torch.no_grad()
    def __call__(self, inputs: ModelInput) -> Tensor:
        """Return the embeddings of the average."""
        return call_model(self.average.module, inputs)

    def step_done(self, progress: Progress) -> None:
        """Move the average towards the network."""
        self.average.update_parameters(self.model)


@dataclass(eq=False, kw_only=True)
class ExplicitConcentration(Directional):
    """Directions with a learnt certainty k; costs one forward pass and a small head.

    Give ``augment`` for the self-supervised setting of the paper; without it, inputs of one class
    are views of one another. SimSiam, BYOL and SwAV are made for views.

    Check the sign of k before you trust it: ask corrupted copies of your data. It says how well two
    views agree, so it depends on the views and on ``regularize``. Noise among the augmentations
    turned the response of k to noise round (in the paper, figure 3, to the wrong side; on frozen
    features, in the benchmarks, to the right one). With a weak ``regularize`` k is nearly constant
    (table 8 of the paper: .001 and below), and on frozen features its sign was wrong below .01.

    Parameters
    ----------
    base : "simclr" | "simsiam" | "byol" | "swav"
        Contrastive loss of the directions. Default: "simclr".
    initial_concentration : float > 0 or None
        Initial k. Default: 5. None: the larger of 16 and Z.
    align, regularize : float >= 0
        Weights l_a and l_r of the alignment and of the pull to zero. Default: 0.05 and 0.005.
    temperature : float > 0
        Temperature of SimCLR. Default: 0.5.
    momentum : float in (0, 1)
        Momentum of BYOL's target network (0.99 and more in the paper; a short training needs less).
        Default: 0.99.
    n_prototypes : int
        Number of prototypes of SwAV. Default: 30.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = ExplicitConcentration(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    base: str = "simclr"
    initial_concentration: float | None = 5.0
    align: float = 0.05
    regularize: float = 0.005
    temperature: float = 0.5
    momentum: float = 0.99
    n_prototypes: int = 30

    contrasts = True
    positive = ("temperature", "momentum")
    counts = ("n_prototypes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("base", self.base, BASES)
        self._target: MovingTarget | None = None

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return the loss of the certainty on top of the contrastive one."""
        bases: dict[str, nn.Module] = {
            "simclr": InfoNCELoss(inverse_temperature=1 / self.temperature),
            "simsiam": SimSiamLoss(sizes.embedding),
            "byol": BYOLLoss(sizes.embedding),
            "swav": SwAVLoss(sizes.embedding, self.n_prototypes),
        }
        return ExplicitConcentrationLoss(
            bases[self.base], align=self.align, regularize=self.regularize
        )

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> ExplicitConcentration:
        """Train as ``Trained.fit``; BYOL's target network is dropped at the end."""
        try:
            super().fit(loader, progress=progress)
        finally:
            self._target = None
        return self

    def callback(self) -> Callback:
        """Return the callback that moves BYOL's target network, if there is one."""
        if self.base != "byol":
            return Callback()
        self._target = MovingTarget(self.model, self.momentum)
        return self._target

    def training_activations(self, inputs: ModelInput) -> HeadActivations:
        """Run the model once in training, and BYOL's target network once."""
        self._target_output = None if self._target is None else self._target(inputs)
        return super().training_activations(inputs)

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of directions, labels [B] and certainties, also of BYOL's target."""
        target = {} if self._target is None else {"target": self._target_output}
        return self.parts["loss"](
            self.means(activations), labels, self.kappa(activations), **target
        )
