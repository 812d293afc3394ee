"""InfoNCE (van den Oord et al. 2018), with the length of the embedding as its certainty."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Sizes
from baselines.base.pairs import check_rows, pair_log_probabilities
from baselines.base.settings import check_positive
from baselines.metric_learning import NormUncertainty


class InfoNCELoss(nn.Module):
    """``loss(embeddings, labels)``: a positive pair against the negatives of its anchor, in nats.

        loss = mean_ij -log [ e^{t e_i.e_j} / (e^{t e_i.e_j} + sum_k e^{t e_i.e_k}) ]

    with unit embeddings e. The value is that of ``NTXentLoss`` of pytorch-metric-learning, which
    compares every positive pair with every negative pair: B^3 numbers where these are B^2.

    Parameters
    ----------
    inverse_temperature : float > 0
        Inverse temperature t of the softmax.

    Examples
    --------
    >>> import torch
    >>> InfoNCELoss(inverse_temperature=2.0)(torch.eye(4), torch.tensor([0, 0, 1, 1]))  # log 3
    tensor(1.0986)
    """

    def __init__(self, *, inverse_temperature: float = 16.0) -> None:
        super().__init__()
        self.inverse_temperature = inverse_temperature

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Map embeddings [B, Z] to a scalar."""
        check_rows(embeddings, labels)
        e = nn.functional.normalize(embeddings, dim=-1)
        return -pair_log_probabilities(self.inverse_temperature * e @ e.mT, labels).mean()


@dataclass(eq=False, kw_only=True)
class InfoNCE(NormUncertainty):
    """An embedder trained by InfoNCE; costs one forward pass.

    ``uncertainty`` is ``1 / |z|`` of the raw embedding (Kirchhof et al. 2023b, B.2), in 1/units of
    z.

    Parameters
    ----------
    inverse_temperature : float > 0
        Inverse temperature t of the softmax; 8 to 64 in the paper. Default: 16.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "inverse_temperature")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the loss; the network is all that is trained."""
        return {"loss": InfoNCELoss(inverse_temperature=self.inverse_temperature)}
