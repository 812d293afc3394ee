"""Hedged instance embeddings (Oh et al. 2019): Gaussian embeddings that match by their samples.

    p_ij = mean_{s,t} sigmoid(-a |z_i^s - z_j^t| + b),      z_i^s ~ N(mu_i, diag(v_i))
    loss = mean_same -log p + mean_different -log(1 - p) + beta mean_i KL( N(mu_i, v_i) || N(0, I) )
    KL   = 1/2 sum_k (v_k + mu_k^2 - 1 - log v_k)

Every draw of i meets every draw of j, as in the paper; a > 0 and b are learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base.heads import inverse_softplus
from baselines.base.pairs import check_rows, matching_loss
from baselines.base.settings import check_counts
from baselines.pfe import DiagonalGaussian
from laplace_metric._utils.validation import check_count


class HedgedInstanceLoss(nn.Module):
    """``loss(embeddings, labels, variance)``, in nats.

    Parameters
    ----------
    kl_weight : float
        Weight beta of the divergence; 1e-4 in both papers.
    n_samples : int
        Number of draws of each embedding (8 in LAM, so 64 of each pair).
    scale, shift : float
        Initial a and b of the logit; they are learnt.

    Examples
    --------
    >>> loss = HedgedInstanceLoss()
    >>> z, y = torch.randn(6, 2), torch.arange(6) % 2
    >>> bool(loss(z, y, torch.full((6, 2), 0.1)) > 0)
    True
    """

    def __init__(
        self,
        *,
        kl_weight: float = 1e-4,
        n_samples: int = 8,
        scale: float = 8.0,
        shift: float = 8.0,
    ) -> None:
        super().__init__()
        check_count("n_samples", n_samples)
        self.kl_weight, self.n_samples = kl_weight, n_samples
        self.raw_scale = nn.Parameter(torch.tensor(inverse_softplus(scale)))
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        variance: Tensor,
        seed: torch.Generator | None = None,
    ) -> Tensor:
        """Map means and variances [B, Z] to a scalar."""
        check_rows(embeddings, labels, variance=variance)
        s, b = self.n_samples, len(embeddings)
        noise = torch.randn(
            (s, *embeddings.shape),
            generator=seed,
            dtype=embeddings.dtype,
            device=embeddings.device,
        )
        z = (embeddings + variance.sqrt() * noise).flatten(0, 1)
        distance = torch.cdist(z, z).view(s, b, s, b).transpose(1, 2).reshape(s * s, b, b)
        a = nn.functional.softplus(self.raw_scale)
        match = matching_loss(self.shift - a * distance, labels)
        return match + self.kl_weight * kl_to_standard_normal(embeddings, variance).mean()


def kl_to_standard_normal(mean: Tensor, variance: Tensor) -> Tensor:
    """Return ``KL( N(mu, diag(v)) || N(0, I) )`` [...] of means and variances [..., Z], in nats.

    Examples
    --------
    >>> kl_to_standard_normal(torch.ones(1, 2), torch.ones(1, 2))
    tensor([1.])
    """
    return (variance + mean.square() - 1 - variance.log()).sum(-1) / 2


@dataclass(eq=False, kw_only=True)
class HIB(DiagonalGaussian):
    """Gaussian embeddings, trained with their embedder; costs one forward pass and a small head.

    ``uncertainty`` is the sum of the Z variances, in squared units of the embedding. The head is
    that of PFE, as in LAM; its settings are those of ``DiagonalGaussian``.

    Parameters
    ----------
    log_variance : float
        Initial log variances. From -3 on, the draws drown the matches and it learns badly. Default:
        -5.
    kl_weight : float
        Weight beta of the divergence. Default: 1e-4.
    n_samples : int
        Number of draws of each embedding in training. Default: 8.
    """

    log_variance: float = -5.0
    kl_weight: float = 1e-4
    n_samples: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "n_samples")

    def make_loss(self) -> nn.Module:
        """Return the matching loss with its pull to a standard normal."""
        return HedgedInstanceLoss(kl_weight=self.kl_weight, n_samples=self.n_samples)
