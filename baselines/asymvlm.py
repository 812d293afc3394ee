"""AsymVLM (Ju et al. 2025): a power spherical distribution for each query of fixed embeddings.

    eta = g(z)        g a perceptron, mu = eta / |eta|, kappa = |eta|
    log p(x | z) = log N(kappa) + kappa log(1 + mu.x)          (De Cao and Aziz 2020)
    s_ij = t log p(x_j | z_i)
    loss = -mean log softmax_j s_ij - mean log softmax_i s_ij      over pairs that belong together

("Exploiting the Asymmetric Uncertainty Structure of Pre-trained VLMs on the Unit Hypersphere",
NeurIPS 2025.) Only one side is a distribution: there the texts, here the queries. The other side,
images there and items here, stays the points that the frozen network gives.

An embedder has one kind of input. A pair that belongs together is two different inputs of one
class, and the others of that class are no negatives of it. For one query the density falls with the
angle to mu alone, so its items are ranked by ``mu.x``: ``method(queries).mean`` against the
directions of the network's own embeddings. With ``1 + mu.x = 2 (1 - |x - mu|^2 / 4)`` the kappa
log 2 cancels from the density.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.neighbours import unit_rows
from baselines.base.pairs import check_rows, pair_log_probabilities
from baselines.base.parts import vectors
from baselines.base.settings import check_counts, check_layer
from baselines.distributions import PowerSpherical
from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.validation import check_count
from laplace_metric.distributions import vmf_concentration
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations

LEAST = 1e-6
"""Least ``(1 + mu.x) / 2``: the density at the point opposite of mu is 0."""


def power_spherical_log_likelihood(
    eta: Float[Tensor, "Q D"], points: Float[Tensor, "G D"]
) -> Float[Tensor, "Q G"]:
    """Return the log density [Q, G] of each point under the distribution of each query.

    Parameters
    ----------
    eta : Tensor [Q, D]
        Mean direction times concentration of each query.
    points : Tensor [G, D]
        Points of unit length.

    Raises
    ------
    InputError
        For shapes that do not fit.

    Examples
    --------
    >>> e = torch.eye(3)
    >>> power_spherical_log_likelihood(2 * e[:1], e).exp()  # 3 / (4 pi) at the mode
    tensor([[0.2387, 0.0597, 0.0597]])
    """
    if eta.ndim != 2 or points.ndim != 2 or eta.shape[1] != points.shape[1]:
        raise InputError(
            f"eta has shape {tuple(eta.shape)} and points {tuple(points.shape)}: pass [Q, D] and "
            "[G, D]."
        )
    kappa = eta.norm(dim=1, keepdim=True)
    cosine = nn.functional.normalize(eta, dim=1) @ points.mT
    b = (eta.shape[1] - 1) / 2
    k = kappa.double()
    # of the mode, in float64: at large D and small kappa the two log Gammas nearly cancel
    peak = torch.lgamma(2 * b + k) - torch.lgamma(b + k) - b * math.log(4 * math.pi)
    return peak.to(eta.dtype) + kappa * ((1 + cosine) / 2).clamp_min(LEAST).log()


class AsymmetricContrastLoss(nn.Module):
    """``loss(eta, labels, points)``: InfoNCE of log densities in both directions, in nats.

    Parameters
    ----------
    temperature : float
        Factor t of the log densities at the start; it is learnt. Default: 1.

    Examples
    --------
    >>> e = torch.eye(3)[[0, 0, 1]]
    >>> right, wrong = (AsymmetricContrastLoss()(8 * e[rows], torch.tensor([0, 0, 1]), e)
    ...                 for rows in ([0, 1, 2], [2, 2, 0]))
    >>> bool(right < wrong)
    True
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(float(temperature)))

    def forward(self, eta: Tensor, labels: Tensor, points: Tensor) -> Tensor:
        """Map eta [B, D] and unit points [B, D] to a scalar."""
        check_rows(eta, labels, points=points)
        similarity = self.temperature * power_spherical_log_likelihood(eta, points)
        forth, back = (pair_log_probabilities(s, labels) for s in (similarity, similarity.mT))
        return -(forth.mean() + back.mean()) / 2


@dataclass(frozen=True)
class PowerSphericalDirections:
    """A mean direction and a concentration of a power spherical for each of B inputs.

    Parameters
    ----------
    loc : Tensor [B, D] of unit length
        Mean direction of each input.
    power : Tensor [B] in [0, inf)
        Concentration k of each input: the exponent of ``1 + mu.x``.

    Examples
    --------
    >>> d = PowerSphericalDirections(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([2.0]))
    >>> d.variance.sum(-1)  # 2 (1 - k / (D - 1 + k))
    tensor([1.])
    """

    loc: Tensor
    power: Tensor

    @property
    def distribution(self) -> PowerSpherical:
        """Distribution as torch has it, of batch shape [B]."""
        return PowerSpherical(self.loc, self.power, validate_args=False)

    @property
    def mean(self) -> Float[Tensor, "B D"]:
        """The mean directions [B, D], of unit length."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "B D"]:
        """Mean squared deviation from ``mean`` [B, D]; its sum is ``2 (1 - R)``."""
        size = self.loc.shape[1]
        b = (size - 1) / 2
        a = b + self.power
        resultant = self._resultant()
        along = 4 * a * b / ((a + b).square() * (a + b + 1))  # of mu.x = 2 Beta(a, b) - 1
        across = (1 - resultant.square() - along) / (size - 1)
        squares = self.loc.square()
        spread = across[:, None] + (along - across)[:, None] * squares
        return spread + (1 - resultant).square()[:, None] * squares

    @property
    def concentration(self) -> Float[Tensor, " B"]:
        """Concentration [B] of the von Mises-Fisher of the same mean, in [0, inf]."""
        return vmf_concentration(self._resultant(), self.loc.shape[1])

    def _resultant(self) -> Tensor:
        """Return R [B], the length of the expectation."""
        return self.power / (self.loc.shape[1] - 1 + self.power)

    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B D"]:
        """Return exact draws [n, B, D] of unit length."""
        return self.distribution.sample((check_count("n", n, 0),), seed)

    def select(self, index: Tensor | slice) -> PowerSphericalDirections:
        """Return distributions at ``index`` of the batch."""
        return PowerSphericalDirections(self.loc[index], self.power[index])

    @classmethod
    def concatenate(cls, parts: Sequence[PowerSphericalDirections]) -> PowerSphericalDirections:
        """Return one batch out of several."""
        return cls(torch.cat([p.loc for p in parts]), torch.cat([p.power for p in parts]))


@dataclass(eq=False, kw_only=True)
class AsymVLM(Trained):
    """Power spherical queries of a frozen embedder; costs one forward pass and a perceptron.

    ``mean`` [B, Z] is mu, which is compared with the directions of the network's own embeddings:
    the gallery is not passed through this method. ``uncertainty`` is 1 / kappa.

    Parameters
    ----------
    on : "embedding" | "features"
        Vectors that are compared: the raw embedding z [B, Z], the default, or the features h [B, D]
        before the head; ``mean`` has their size.
    hidden : int
        Width of the three hidden layers, with ReLUs; the published code has 1,024. Default: 256.
    frozen : bool
        True, the default. False is refused: the other side of a pair would move, too.

    Raises
    ------
    InputError
        For settings out of range.
    LabelError
        From ``fit``, for a single class, and batches without two inputs of one class.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = AsymVLM(nn.Linear(4, 3), hidden=8, training=Training(epochs=2))
    >>> e = method.fit([(x, y)], progress=False)(x)
    >>> e.mean.shape, e.uncertainty.shape
    (torch.Size([12, 3]), torch.Size([12]))
    """

    on: str = "embedding"
    hidden: int = 256
    frozen: bool = True

    contrasts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layer(self.on)
        check_counts(self, "hidden")
        if not self.spherical:
            raise InputError("spherical=False: a power spherical embedding is a direction.")
        if not self.frozen:
            raise InputError("frozen=False: the points of the other side are a frozen network's.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the perceptron of eta, and the loss."""
        width, hidden = sizes.width(self.on), self.hidden
        layers: list[nn.Module] = []
        for n_inputs in (width, hidden, hidden):
            layers += [nn.Linear(n_inputs, hidden), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(hidden, width))
        return {"eta": network, "loss": AsymmetricContrastLoss()}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        points = unit_rows(vectors(activations, self.on))
        return self.parts["loss"](self.parts["eta"](points), labels, points)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return power spherical distributions; 1 / kappa [B] is the uncertainty."""
        eta = self.parts["eta"](unit_rows(vectors(activations, self.on)))
        kappa = eta.norm(dim=1)
        mu = nn.functional.normalize(eta, dim=1)
        return Embedding(PowerSphericalDirections(mu, kappa), kappa.reciprocal())
