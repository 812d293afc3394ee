"""Probabilistic face embeddings (Shi and Jain 2019): a variance for each coordinate, learnt last.

The embedder stays as it is; a head on its features predicts the variances of ``N(mu, diag(v))``
from pairs of one class, by the mutual likelihood score (PFE, eq. 3)

    s_ab = -1/2 sum_k [ (mu_ak - mu_bk)^2 / (v_ak + v_bk) + log(v_ak + v_bk) ]     loss = -mean s_ab
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base.diagonal_gaussian import DiagonalGaussian
from baselines.base.pairs import check_rows, positive_pairs


class MutualLikelihoodLoss(nn.Module):
    """``loss(embeddings, labels, variance)``: the score of the positive pairs, negated.

    Examples
    --------
    >>> import torch
    >>> z, v = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)
    >>> round(float(MutualLikelihoodLoss()(z, torch.zeros(2), v)), 4)  # (4/2 + log 2) / 2
    1.3466
    """

    def forward(self, embeddings: Tensor, labels: Tensor, variance: Tensor) -> Tensor:
        """Embeddings and variances [B, Z] -> scalar, in nats a pair."""
        check_rows(embeddings, labels, variance=variance)
        a, b = positive_pairs(labels)
        total = variance[a] + variance[b]
        squared = (embeddings[a] - embeddings[b]).square()
        return (squared / total + total.log()).sum(-1).mean() / 2


@dataclass(eq=False, kw_only=True)
class PFE(DiagonalGaussian):
    """A frozen embedder with a learnt variance; costs one forward pass and a small head.

    ``uncertainty`` is the sum of the Z variances, in squared units of the embedding.

    Parameters
    ----------
    frozen : bool
        False trains the embedder too.

    The head's settings are those of ``DiagonalGaussian``.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> from baselines.base import Training
    >>> method = PFE(nn.Linear(4, 2), training=Training(epochs=2)).fit([(x, y)], progress=False)
    >>> method(x).variance.shape
    torch.Size([12, 2])
    """

    frozen: bool = True

    def make_loss(self) -> nn.Module:
        return MutualLikelihoodLoss()
