"""What PFE and HIB share: ``N(mu, diag(v))`` with log variances from a head on the features."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base.checks import check_counts
from baselines.base.fitted import Sizes
from baselines.base.log_variance import LogVarianceHead
from baselines.base.trained import Trained
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.models.heads import HeadActivations


@dataclass(eq=False, kw_only=True)
class DiagonalGaussian(Trained):
    """Costs one forward pass and a small head.

    ``uncertainty`` is the sum of the Z variances, in squared units of the embedding (a direction,
    if spherical).

    Parameters
    ----------
    hidden : int
        Width of the head.
    log_variance : float
        Where the log variances start (the shift of the last batch norm).
    """

    hidden: int = 128
    log_variance: float = -7.0

    contrasts = True

    def __post_init__(self) -> None:
        check_counts(self, "hidden")

    @abstractmethod
    def make_loss(self) -> nn.Module:
        """``loss(embeddings, labels, variance)``."""

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        head = LogVarianceHead(sizes.features, self.hidden, sizes.embedding, self.log_variance)
        return {"log_variance": head, "loss": self.make_loss()}

    def objective(self, seen: HeadActivations, labels: Tensor) -> Tensor:
        if len(labels) < 2:
            raise InputError(
                "a batch of one input has no batch norm: drop a small last batch (drop_last=True)."
            )
        return self.parts["loss"](self.means(seen), labels, self._variance(seen))

    def embedding(self, seen: HeadActivations) -> Embedding:
        return Embedding(Gaussian(self.means(seen), self._variance(seen)))

    def _variance(self, seen: HeadActivations) -> Tensor:
        return self.parts["log_variance"](seen.features).exp()
