"""Loss prediction (Yoo and Kweon 2019, as in the URL benchmark): the uncertainty is the loss.

    loss = mean_b [ l_b + lambda (u_b - stopgrad(l_b))^2 ]         l_b = -log softmax(W z_b + b)_y

(Kirchhof et al. 2023b, eq. 8), u a perceptron of three layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.heads import perceptron
from baselines.base.parts import vectors
from baselines.base.settings import check_counts, check_layer
from baselines.cross_entropy import LinearCrossEntropyLoss
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations


class LossPredictionLoss(LinearCrossEntropyLoss):
    """``loss(embeddings, labels, uncertainty)``: cross-entropy, and the error of its prediction.

    Parameters
    ----------
    n_dimensions, n_classes : int
        Sizes Z of the embedding and C of the classes.
    weight : float > 0
        Weight lambda of the error of the prediction.

    Examples
    --------
    >>> import torch
    >>> loss = LossPredictionLoss(2, 3, weight=0.5)
    >>> _ = nn.init.zeros_(loss.classifier.weight), nn.init.zeros_(loss.classifier.bias)
    >>> value = loss(torch.ones(2, 2), torch.tensor([0, 1]), torch.zeros(2))
    >>> round(value.item(), 4)  # log 3 + (log 3)^2 / 2
    1.7021
    """

    def __init__(self, n_dimensions: int, n_classes: int, weight: float = 0.1) -> None:
        super().__init__(n_dimensions, n_classes)
        if not weight > 0:
            raise InputError(f"weight={weight!r}: pass a number > 0.")
        self.weight = weight

    def forward(  # type: ignore[override]
        self, embeddings: Tensor, labels: Tensor, uncertainty: Tensor
    ) -> Tensor:
        """Map z [B, Z], class numbers [B], u [B] to a scalar."""
        each = self.each(embeddings, labels)
        if uncertainty.shape != each.shape:
            raise InputError(
                f"uncertainty has shape {tuple(uncertainty.shape)}: pass one number for each of "
                f"the {len(each)} embeddings."
            )
        return (each + self.weight * (uncertainty - each.detach()).square()).mean()


@dataclass(eq=False, kw_only=True)
class LossPrediction(Trained):
    """A classifier that predicts its own loss; costs one forward pass and a small perceptron.

    ``uncertainty`` is the predicted cross-entropy, in nats; it is not forced to be positive.

    Parameters
    ----------
    weight : float > 0
        Weight lambda of the error of the prediction; the paper tunes it in [0.01, 0.99]. Default:
        0.1.
    hidden : int
        Width of the perceptron: (W + 1) H + (H + 1) H + H + 1 weights for W inputs, H hidden.
        Default: 128.
    on : "embedding" | "features"
        Inputs of the perceptron: z, the default (the paper), or h; its gradient reaches the model.

    Raises
    ------
    InputError
        For a weight that is not positive, or an unknown place.

    Examples
    --------
    >>> import torch
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = LossPrediction(nn.Linear(4, 2), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    weight: float = 0.1
    hidden: int = 128
    on: str = "embedding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layer(self.on)
        check_counts(self, "hidden")
        if not self.weight > 0:
            raise InputError(f"weight={self.weight!r}: pass a number > 0.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the loss with its classifier, and the predictor of the loss."""
        return {
            "loss": LossPredictionLoss(sizes.embedding, sizes.classes, self.weight),
            "predictor": perceptron(sizes.width(self.on), self.hidden, 1),
        }

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the cross-entropy, and the error of its prediction."""
        return self.parts["loss"](activations.raw, labels, self._predicted(activations))

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses with the predicted loss [B]."""
        return self.points(activations, self._predicted(activations))

    def _predicted(self, activations: HeadActivations) -> Tensor:
        return self.parts["predictor"](vectors(activations, self.on))[:, 0]
