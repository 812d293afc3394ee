"""Plain metric learning: any loss of pytorch-metric-learning, no distribution over embeddings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from baselines.base import UNSAVED, Sizes, Trained
from laplace_metric.embedding import Embedding
from laplace_metric.heads._located import HeadActivations


class NormUncertainty(Trained):
    """Trained by ``loss(embeddings, labels)``; ``1 / |z|`` of the raw z is the uncertainty."""

    contrasts = True

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of the embeddings that are searched with."""
        return self.parts["loss"](self.means(activations), labels)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses; ``1 / |z|`` [B] is the uncertainty."""
        return self.points(
            activations, torch.linalg.vector_norm(activations.raw, dim=-1).reciprocal()
        )


@dataclass(eq=False, kw_only=True)
class MetricLearning(NormUncertainty):
    """An embedder trained by a metric loss; costs one forward pass.

    ``uncertainty`` is ``1 / |z|`` of the raw embedding z (Scott et al. 2021), in 1/units of z.

    Parameters
    ----------
    loss : nn.Module or None
        Metric loss ``loss(embeddings, labels)``. None, the default:
        ``ContrastiveLoss(neg_margin=0.5)`` of pytorch-metric-learning, on l2-normalised embeddings.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = MetricLearning(nn.Linear(4, 2), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    loss: nn.Module | None = field(default=None, metadata=UNSAVED)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return a copy of the loss."""
        loss = ContrastiveLoss(neg_margin=0.5) if self.loss is None else copy.deepcopy(self.loss)
        return {"loss": loss}
