"""HET-XL (Collier et al. 2023): a heteroscedastic Gaussian over the embedding, under a classifier.

    Sigma(x) = V V^T + diag(d)         V [Z, R] and d > 0 [Z] linear in the features

    loss = -log mean_s softmax(W (z + V xi_s + sqrt(d) o xi'_s) / tau)_y
                                       xi_s ~ N(0, I_R), xi'_s ~ N(0, I_Z); tau > 0 learnt

(Kirchhof et al. 2023b, eq. 6.) Each coordinate has noise of its own, ``xi'`` [S, B, Z]; the
benchmark's code shares one number between the coordinates, which is another covariance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.concentration import inverse_softplus
from baselines.base.low_rank import LowRankCovariance
from baselines.base.pairs import check_rows
from baselines.base.softmax_pairs import log_mean_exp
from laplace_metric._utils.validation import check_count
from laplace_metric.distributions import Gaussian, ProjectedNormal
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.models.heads import HeadActivations

Noise = tuple[Tensor, Tensor]


class HETXLLoss(nn.Module):
    """``loss(embeddings, labels, factor, diagonal)``: cross-entropy of the mean probability.

    Parameters
    ----------
    n_dimensions, n_classes : int
        Z and C: Z C + 1 weights.
    n_samples : int
        S; the sampled loss is above the exact one by about var(p) / (2 S p^2).

    Examples
    --------
    >>> loss = HETXLLoss(2, 3)
    >>> z, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    >>> none = loss(z, y, torch.zeros(4, 2, 1), torch.zeros(4, 2))  # no noise: log 3
    >>> round(none.item(), 4)
    1.0986
    """

    def __init__(self, n_dimensions: int, n_classes: int, n_samples: int = 16) -> None:
        super().__init__()
        check_count("n_samples", n_samples)
        self.n_samples = n_samples
        self.classifier = nn.Linear(n_dimensions, n_classes, bias=False)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        factor: Tensor,
        diagonal: Tensor,
        noise: Noise | None = None,
    ) -> Tensor:
        """z [B, Z], class numbers [B], V [B, Z, R], d [B, Z], (xi, xi') or None -> scalar, nats."""
        check_rows(embeddings, labels, factor=factor, diagonal=diagonal)
        xi, own = self.noise(factor) if noise is None else noise
        z = embeddings + torch.einsum("bzr,sbr->sbz", factor, xi) + diagonal.sqrt() * own
        log_p = (self.classifier(z) / self.log_temperature.exp()).log_softmax(-1)
        each = log_p.gather(-1, labels.expand(len(z), -1)[..., None])[..., 0]  # [S, B]
        return -log_mean_exp(each).mean()

    def noise(self, factor: Tensor, generator: torch.Generator | None = None) -> Noise:
        """xi [S, B, R] and xi' [S, B, Z] for V [B, Z, R]."""
        b, z, r = factor.shape
        kind = {"dtype": factor.dtype, "device": factor.device, "generator": generator}
        return (
            torch.randn(self.n_samples, b, r, **kind),  # type: ignore[call-overload]
            torch.randn(self.n_samples, b, z, **kind),  # type: ignore[call-overload]
        )


class LowRankHead(nn.Module):
    """Features [B, D] -> V [B, Z, R] and d [B, Z] >= 1e-3: (D + 1) Z (R + 1) weights."""

    smallest = 1e-3

    def __init__(self, sizes: Sizes, rank: int, variance: float) -> None:
        super().__init__()
        self.factor = nn.Linear(sizes.features, sizes.embedding * rank)
        self.diagonal = nn.Linear(sizes.features, sizes.embedding)
        self.rank, self.offset = rank, inverse_softplus(variance)

    def forward(self, features: Tensor) -> LowRankCovariance:
        """[B, D] -> B covariances."""
        diagonal = nn.functional.softplus(self.diagonal(features) + self.offset) + self.smallest
        factor = self.factor(features).unflatten(-1, (-1, self.rank))
        return LowRankCovariance(factor, diagonal)


@dataclass(eq=False, kw_only=True)
class HETXL(Trained):
    """A classifier with input-dependent Gaussian noise; costs one pass and D Z (R + 1) products.

    The distribution is ``N(z, Sigma)`` of the raw embedding z, on the sphere its direction (a
    projected normal). ``uncertainty`` is ``log det Sigma`` of the raw embedding, in nats; it may
    be negative. It is that of noise in the labels: where labels are clean, training shrinks Sigma
    to its floor, and what is left of the determinant does not find errors.

    Parameters
    ----------
    rank : int
        R (URL: 1).
    n_samples : int
        S of the loss.
    variance : float > 0
        Where d starts, in squared units of z.

    Raises
    ------
    InputError
        For a rank or number of samples below 1, or a variance that is not positive.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = HETXL(nn.Linear(4, 2), training=Training(epochs=2)).fit([(x, y)], progress=False)
    >>> method(x).variance.shape
    torch.Size([12, 2])
    """

    rank: int = 1
    n_samples: int = 16
    variance: float = 0.1

    def __post_init__(self) -> None:
        check_count("rank", self.rank)
        check_count("n_samples", self.n_samples)
        if not self.variance > 0:
            raise InputError(f"variance={self.variance!r}: pass a number > 0.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        loss = HETXLLoss(sizes.embedding, sizes.classes, self.n_samples)
        return {"covariance": LowRankHead(sizes, self.rank, self.variance), "loss": loss}

    def objective(self, seen: HeadActivations, labels: Tensor) -> Tensor:
        covariance = self._covariance(seen)
        return self.parts["loss"](seen.raw, labels, covariance.factor, covariance.diagonal_part)

    def embedding(self, seen: HeadActivations) -> Embedding:
        kind, covariance = ProjectedNormal if self.spherical else Gaussian, self._covariance(seen)
        return Embedding(kind(seen.raw, covariance), covariance.logdet())

    def _covariance(self, seen: HeadActivations) -> LowRankCovariance:
        return self.parts["covariance"](seen.features)
