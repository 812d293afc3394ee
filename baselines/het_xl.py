"""HET-XL (Collier et al. 2023): a heteroscedastic Gaussian over the embedding, under a classifier.

    Sigma(x) = V V^T + diag(d)         V [Z, R] and d > 0 [Z] linear in the features

    loss = -log mean_s softmax(W (z + V xi_s + sqrt(d) o xi'_s) / tau)_y
                                       xi_s ~ N(0, I_R), xi'_s ~ N(0, I_Z); tau > 0 learnt

(Kirchhof et al. 2023b, eq. 6.) Each coordinate has noise of its own, ``xi'`` [S, B, Z]; the
benchmark's code shares one number between the coordinates, which is another covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.heads import inverse_softplus
from baselines.base.pairs import check_rows, log_mean_exp
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.distributions import Covariance, Gaussian, ProjectedNormal
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations

Noise = tuple[Tensor, Tensor]
SCORES = ("determinant", "entropy")


@dataclass(frozen=True)
class LowRankCovariance(Covariance):
    """``C_b = V_b V_b^T + diag(d_b)``.

    Parameters
    ----------
    factor : Tensor [B, Z, R]
        Factor V of the part of low rank.
    diagonal_part : Tensor [B, Z]
        Diagonal d, above 0.

    Examples
    --------
    >>> LowRankCovariance(torch.ones(1, 2, 1), torch.ones(1, 2)).dense()
    tensor([[[2., 1.],
             [1., 2.]]])
    """

    factor: Tensor
    diagonal_part: Tensor

    def diagonal(self) -> Tensor:
        """Return the variances [B, Z]."""
        return self.factor.square().sum(-1) + self.diagonal_part

    def apply(self, vectors: Tensor) -> Tensor:
        """Return ``C_b v_b`` of vectors [B, Z]."""
        inside = self.factor.mT @ vectors[..., None]
        return (self.factor @ inside)[..., 0] + self.diagonal_part * vectors

    def color(self, noise: Tensor) -> Tensor:
        """Return ``D^{1/2} (I + U U^T)^{1/2} e`` of noise e [n, B, Z], with ``U = D^{-1/2} V``.

        With ``U^T U = P s P^T``,

        (I + U U^T)^{1/2} = I + U P diag(1 / (1 + sqrt(1 + s))) P^T U^T
        """
        u = self._scaled
        s, p = torch.linalg.eigh(u.mT @ u)
        up = u @ p  # [B, Z, R]
        weights = 1 / (1 + (1 + s.clamp_min(0)).sqrt())
        inside = torch.einsum("bzr,nbz->nbr", up, noise) * weights
        root = noise + torch.einsum("bzr,nbr->nbz", up, inside)
        return root * self.diagonal_part.sqrt()

    def dense(self) -> Tensor:
        """Return the matrices [B, Z, Z]."""
        return self.factor @ self.factor.mT + torch.diag_embed(self.diagonal_part)

    def logdet(self) -> Tensor:
        """Return ``sum_k log d_k + log det(I_R + V^T diag(d)^-1 V)`` [B]."""
        u = self._scaled
        small = u.mT @ u + torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        return self.diagonal_part.log().sum(-1) + torch.linalg.slogdet(small).logabsdet

    def select(self, index: Any) -> LowRankCovariance:
        """Return the covariances of some inputs."""
        return LowRankCovariance(self.factor[index], self.diagonal_part[index])

    @classmethod
    def concatenate(cls, parts: Sequence[LowRankCovariance]) -> LowRankCovariance:
        """Return covariances, one after the other."""
        return cls(
            torch.cat([p.factor for p in parts]), torch.cat([p.diagonal_part for p in parts])
        )

    @property
    def _scaled(self) -> Tensor:
        """U = diag(d)^{-1/2} V [B, Z, R]."""
        return self.factor / self.diagonal_part.sqrt()[..., None]


class HETXLLoss(nn.Module):
    """``loss(embeddings, labels, factor, diagonal)``: cross-entropy of the mean probability.

    Parameters
    ----------
    n_dimensions, n_classes : int
        Sizes Z of the embedding and C of the classes: Z C + 1 weights.
    n_samples : int
        Number S of draws; the sampled loss is above the exact one by about var(p) / (2 S p^2).

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
        """Return the loss in nats of z [B, Z], class numbers [B], V [B, Z, R] and d [B, Z]."""
        check_rows(embeddings, labels, factor=factor, diagonal=diagonal)
        noise = self.noise(factor) if noise is None else noise
        log_p = self.log_probabilities(embeddings, factor, diagonal, noise)
        each = log_p.gather(-1, labels.expand(len(log_p), -1)[..., None])[..., 0]  # [S, B]
        return -log_mean_exp(each).mean()

    def log_probabilities(
        self, embeddings: Tensor, factor: Tensor, diagonal: Tensor, noise: Noise
    ) -> Tensor:
        """Return the log class probabilities of every draw [S, B, C]."""
        xi, xi_diagonal = noise
        low_rank = torch.einsum("bzr,sbr->sbz", factor, xi.expand(-1, len(factor), -1))
        z = embeddings + low_rank + diagonal.sqrt() * xi_diagonal
        return (self.classifier(z) / self.log_temperature.exp()).log_softmax(-1)

    def entropy(self, embeddings: Tensor, factor: Tensor, diagonal: Tensor) -> Tensor:
        """Return the entropy [B] of the mean class probability over fixed draws, in nats."""
        generator = torch.Generator(factor.device).manual_seed(0)
        log_p = log_mean_exp(
            self.log_probabilities(embeddings, factor, diagonal, self.noise(factor[:1], generator))
        )
        return -(log_p.exp() * log_p).sum(-1)

    def noise(self, factor: Tensor, generator: torch.Generator | None = None) -> Noise:
        """Return xi [S, B, R] and xi' [S, B, Z] for V [B, Z, R]."""
        b, z, r = factor.shape
        dtype, device, n = factor.dtype, factor.device, self.n_samples
        shared = torch.randn(n, b, r, dtype=dtype, device=device, generator=generator)
        return shared, torch.randn(n, b, z, dtype=dtype, device=device, generator=generator)


class LowRankHead(nn.Module):
    """Features [B, D] -> V [B, Z, R] and d [B, Z] >= 1e-3: (D + 1) Z (R + 1) weights."""

    smallest = 1e-3

    def __init__(self, sizes: Sizes, rank: int, variance: float) -> None:
        super().__init__()
        self.factor = nn.Linear(sizes.features, sizes.embedding * rank)
        self.diagonal = nn.Linear(sizes.features, sizes.embedding)
        self.rank, self.offset = rank, inverse_softplus(variance)

    def forward(self, features: Tensor) -> LowRankCovariance:
        """Map features [B, D] to B covariances."""
        diagonal = nn.functional.softplus(self.diagonal(features) + self.offset) + self.smallest
        factor = self.factor(features).unflatten(-1, (-1, self.rank))
        return LowRankCovariance(factor, diagonal)


@dataclass(eq=False, kw_only=True)
class HETXL(Trained):
    """A classifier with input-dependent Gaussian noise; costs one pass and D Z (R + 1) products.

    The distribution is ``N(z, Sigma)`` of the raw embedding z, on the sphere its direction (a
    projected normal). ``uncertainty`` is ``score``. ``log det Sigma`` is of the raw embedding, in
    nats, and may be negative. It is that of noise in the labels: where labels are clean, training
    shrinks Sigma to its floor, and what is left of the determinant does not find errors.

    Parameters
    ----------
    rank : int
        Rank R of the covariance (URL: 1). Default: 1.
    n_samples : int
        Number S of draws of the loss. Default: 16.
    variance : float > 0
        Initial d, in squared units of z. Default: 0.1.
    score : "determinant" | "entropy"
        Score of an input. "determinant", the default: ``log det Sigma``. "entropy": that of the
        mean class probability over ``n_samples`` draws (the same for every input), in nats. URL
        tests both (section 4.1).

    Raises
    ------
    UnknownNameError
        For a score that does not exist.
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
    score: str = "determinant"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("score", self.score, SCORES)
        check_count("rank", self.rank)
        check_count("n_samples", self.n_samples)
        if not self.variance > 0:
            raise InputError(f"variance={self.variance!r}: pass a number > 0.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the covariance's head, and the loss with its classifier."""
        loss = HETXLLoss(sizes.embedding, sizes.classes, self.n_samples)
        return {"covariance": LowRankHead(sizes, self.rank, self.variance), "loss": loss}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the mean probability under the noise."""
        covariance = self._covariance(activations)
        return self.parts["loss"](
            activations.raw, labels, covariance.factor, covariance.diagonal_part
        )

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return Gaussians, or their directions; ``score`` [B] is the uncertainty."""
        kind, covariance = (
            ProjectedNormal if self.spherical else Gaussian,
            self._covariance(activations),
        )
        if self.score == "entropy":
            loss = self.parts["loss"]
            assert isinstance(loss, HETXLLoss)
            score = loss.entropy(activations.raw, covariance.factor, covariance.diagonal_part)
        else:
            score = covariance.logdet()
        return Embedding(kind(activations.raw, covariance), score)

    def _covariance(self, activations: HeadActivations) -> LowRankCovariance:
        return self.parts["covariance"](activations.features)
