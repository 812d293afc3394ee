"""Probabilistic face embeddings (Shi and Jain 2019): a variance for each coordinate, learnt last.

The embedder stays as it is; a head on its features predicts the variances of ``N(mu, diag(v))``
from pairs of one class, by the mutual likelihood score (PFE, eq. 3)

    s_ab = -1/2 sum_k [ (mu_ak - mu_bk)^2 / (v_ak + v_bk) + log(v_ak + v_bk) ]     loss = -mean s_ab
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.heads import LogVarianceHead
from baselines.base.pairs import check_rows, positive_pairs
from baselines.base.settings import check_counts
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations


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
        """Map embeddings and variances [B, Z] to a scalar, in nats a pair."""
        check_rows(embeddings, labels, variance=variance)
        a, b = positive_pairs(labels)
        total = variance[a] + variance[b]
        squared = (embeddings[a] - embeddings[b]).square()
        return (squared / total + total.log()).sum(-1).mean() / 2


@dataclass(eq=False, kw_only=True)
class DiagonalGaussian(Trained):
    """Costs one forward pass and a small head.

    ``uncertainty`` is the sum of the Z variances, in squared units of the embedding (a direction,
    if spherical).

    Parameters
    ----------
    hidden : int
        Width of the head. Default: 128.
    log_variance : float
        Initial log variances (the shift of the last batch norm). Default: -7.
    """

    hidden: int = 128
    log_variance: float = -7.0

    contrasts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "hidden")

    @abstractmethod
    def make_loss(self) -> nn.Module:
        """Return ``loss(embeddings, labels, variance)``."""

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the head of the log variances, and the loss."""
        head = LogVarianceHead(sizes.features, self.hidden, sizes.embedding, self.log_variance)
        return {"log_variance": head, "loss": self.make_loss()}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of embeddings, class numbers [B] and variances."""
        if len(labels) < 2:
            raise InputError(
                "a batch of one input has no batch norm: drop a small last batch (drop_last=True)."
            )
        return self.parts["loss"](self.means(activations), labels, self._variance(activations))

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return Gaussians with diagonal covariances."""
        return Embedding(Gaussian(self.means(activations), self._variance(activations)))

    def _variance(self, activations: HeadActivations) -> Tensor:
        return self.parts["log_variance"](activations.features).exp()


@dataclass(eq=False, kw_only=True)
class PFE(DiagonalGaussian):
    """A frozen embedder with a learnt variance; costs one forward pass and a small head.

    ``uncertainty`` is the sum of the Z variances, in squared units of the embedding. The head's
    settings are those of ``DiagonalGaussian``.

    Parameters
    ----------
    frozen : bool
        True, the default, trains the head alone. False trains the embedder too.

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
        """Return the mutual likelihood score, negated."""
        return MutualLikelihoodLoss()
