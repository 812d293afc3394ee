"""A classifier on the embedding, and the entropy of its class probabilities.

    loss = -log softmax(W z + b)_y                       uncertainty = H(softmax(W z + b))

The baseline of the URL benchmark (Kirchhof et al. 2023b, appendix B.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.pairs import check_rows
from baselines.base.probabilities import entropy
from laplace_metric.embedding import Embedding
from laplace_metric.heads._located import HeadActivations


class LinearCrossEntropyLoss(nn.Module):
    """``loss(embeddings, labels)`` with a linear classifier of its own, ``loss.classifier``.

    Parameters
    ----------
    n_dimensions, n_classes : int
        Sizes Z of the embedding and C of the classes: (Z + 1) C weights.

    Examples
    --------
    >>> import torch
    >>> loss = LinearCrossEntropyLoss(2, 3)
    >>> _ = nn.init.zeros_(loss.classifier.weight), nn.init.zeros_(loss.classifier.bias)
    >>> round(loss(torch.ones(4, 2), torch.tensor([0, 1, 2, 0])).item(), 4)  # log 3
    1.0986
    """

    def __init__(self, n_dimensions: int, n_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(n_dimensions, n_classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Map embeddings [B, Z], class numbers [B] to a scalar, in nats an input."""
        return self.each(embeddings, labels).mean()

    def each(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every input [B]."""
        check_rows(embeddings, labels)
        logits = self.classifier(embeddings)
        return nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(eq=False, kw_only=True)
class CrossEntropy(Trained):
    """An embedder trained as a classifier; costs one forward pass and Z C products.

    ``uncertainty`` is the entropy of the class probabilities, in nats, in [0, log C].

    Examples
    --------
    >>> import torch
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = CrossEntropy(nn.Linear(4, 2), training=Training(epochs=2))
    >>> bool(method.fit([(x, y)], progress=False)(x).uncertainty.max() <= 1.0987)  # log 3
    True
    """

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the loss, with its classifier."""
        return {"loss": LinearCrossEntropyLoss(sizes.embedding, sizes.classes)}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the raw embeddings."""
        return self.parts["loss"](activations.raw, labels)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses with the entropy [B] of the class probabilities."""
        return self.points(activations, entropy(self.classifier(activations.raw)))

    @property
    def classifier(self) -> nn.Linear:
        """Raw embeddings [B, Z] -> logits [B, C], columns in the order of ``fitted_.classes``."""
        return self.parts["loss"].classifier  # type: ignore[return-value]
