"""InfoNCE (van den Oord et al. 2018), with the length of the embedding as its certainty."""

from __future__ import annotations

from dataclasses import dataclass

from pytorch_metric_learning.losses import NTXentLoss
from torch import nn

from baselines.base import Sizes
from baselines.metric_learning import NormCertain


@dataclass(eq=False, kw_only=True)
class InfoNCE(NormCertain):
    """A positive pair against the negatives of its anchor.

        loss = mean_ij -log [ e^{t e_i.e_j} / (e^{t e_i.e_j} + sum_k e^{t e_i.e_k}) ]

    The loss is ``NTXentLoss`` of pytorch-metric-learning with temperature 1/t. Costs one forward
    pass; ``uncertainty`` is ``1 / |z|`` of the raw embedding (Kirchhof et al. 2023b, B.2).

    Parameters
    ----------
    inverse_temperature : float > 0
        t; 8 to 64 in the paper.

    Examples
    --------
    >>> import torch
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = InfoNCE(nn.Linear(4, 2), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).mean.shape
    torch.Size([12, 2])
    """

    inverse_temperature: float = 16.0

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        return {"loss": NTXentLoss(temperature=1 / self.inverse_temperature)}
