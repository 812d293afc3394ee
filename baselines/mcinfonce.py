"""MCInfoNCE (Kirchhof et al. 2023a): InfoNCE in expectation over von Mises-Fisher posteriors.

    loss = -log mean_s [ e^{t z_s.z_s+} / (e^{t z_s.z_s+} / M + mean_m e^{t z_s.z_sm-}) ]

with draws z_s of the posteriors of an input, a positive and M negatives (eq. 7): the logarithm of a
mean over draws. (Eq. 2 of the URL paper prints the mean of the logarithm.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base import Directional, Sizes
from baselines.base.directional import SampledLoss
from baselines.base.pairs import log_mean_exp, pair_log_probabilities


def contrast(positive: Tensor, negative: Tensor) -> Tensor:
    """Compute the loss of each input from the similarities of its draws, in nats; at least -log M.

    Parameters
    ----------
    positive : Tensor [S, B]
        Similarities ``t z.z+`` with the positives, of S draws.
    negative : Tensor [S, M, B]
        Similarities ``t z.z-`` with M negatives, of S draws.

    Returns
    -------
    Tensor [B]

    Examples
    --------
    >>> contrast(torch.zeros(4, 2), torch.zeros(4, 1, 2))  # 1 / (1 + 1)
    tensor([0.6931, 0.6931])
    """
    m = negative.shape[1]
    below = torch.logaddexp(positive - math.log(m), log_mean_exp(negative, 1))
    return -log_mean_exp(positive - below, 0)


class MCInfoNCELoss(SampledLoss):
    """MCInfoNCE of a batch: ``loss(embeddings, labels, concentration)``, in nats.

    Every pair of one class is a positive, items of other classes are the negatives of its anchor;
    the probabilities of a pair are averaged over draws, then the logarithm is taken.

    Parameters
    ----------
    inverse_temperature : float > 0
        Inverse temperature t, the kappa_pos of the paper (20; 16 on CIFAR-10H).
    n_samples : int
        Number S of draws (16 in URL, 512 in the controlled experiment).

    Examples
    --------
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(MCInfoNCELoss()(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(self, *, inverse_temperature: float = 20.0, n_samples: int = 16) -> None:
        super().__init__(n_samples)
        self.inverse_temperature = inverse_temperature

    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss from the probabilities of pairs, averaged over draws [S, B, Z]."""
        similarity = self.inverse_temperature * z @ z.mT
        return -log_mean_exp(pair_log_probabilities(similarity, labels), 0).mean()


@dataclass(eq=False, kw_only=True)
class MCInfoNCE(Directional):
    """vMF posteriors trained by MCInfoNCE; see ``Directional`` for the embeddings.

    Parameters
    ----------
    inverse_temperature : float > 0
        Inverse temperature t, as of ``MCInfoNCELoss``. Default: 20.
    n_samples : int
        Number of draws in training; none are needed afterwards. Default: 16.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = MCInfoNCE(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).concentration.shape
    torch.Size([12])
    """

    inverse_temperature: float = 20.0
    n_samples: int = 16

    positive = ("inverse_temperature",)
    counts = ("n_samples",)
    contrasts = True

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return InfoNCE in expectation over the draws."""
        return MCInfoNCELoss(inverse_temperature=self.inverse_temperature, n_samples=self.n_samples)
