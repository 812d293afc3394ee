"""Hedged instance embeddings on the sphere (Kirchhof et al. 2023a, eq. 54; 2023b, B.6).

    p_ij = mean_s sigmoid(t z_i^s.z_j^s + b),   z_i^s ~ vMF(mu_i, kappa_i)
    loss = mean_same -log p - mean_different log(1 - p)

There is no prior on kappa, as in both papers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Directional, Sizes
from baselines.base.directional import SampledLoss
from baselines.base.pairs import matching_loss


class ContrastiveHIBLoss(SampledLoss):
    """``loss(embeddings, labels, concentration)``, in nats.

    Parameters
    ----------
    scale : float > 0
        Scale t of the logit; 8 to 64 in URL.
    shift : float
        Shift b of the logit; -8 to 8 in URL. Draws match where their cosine exceeds -b/t.
    n_samples : int
        Number of draws of each embedding; 16 in URL.

    Examples
    --------
    >>> import torch
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(ContrastiveHIBLoss()(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(self, *, scale: float = 16.0, shift: float = -8.0, n_samples: int = 16) -> None:
        super().__init__(n_samples)
        self.scale, self.shift = scale, shift

    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the matching loss of draws [S, B, Z]."""
        return matching_loss(self.scale * z @ z.mT + self.shift, labels)


@dataclass(eq=False, kw_only=True)
class ContrastiveHIB(Directional):
    """vMF embeddings trained by matching probabilities; see ``Directional`` for the embeddings.

    Parameters
    ----------
    scale, shift : float
        Scale t and shift b of the logit, as of ``ContrastiveHIBLoss``. Default: 16 and -8.
    n_samples : int
        Number of draws in training. Default: 16.

    Examples
    --------
    >>> import torch
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = ContrastiveHIB(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    scale: float = 16.0
    shift: float = -8.0
    n_samples: int = 16

    positive = ("scale",)
    counts = ("n_samples",)
    contrasts = True

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return the matching loss of this scale and shift."""
        return ContrastiveHIBLoss(scale=self.scale, shift=self.shift, n_samples=self.n_samples)
