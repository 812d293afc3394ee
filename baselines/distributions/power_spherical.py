"""The uniform and the power spherical distribution on the unit sphere; divergences on it.

The power spherical distribution (De Cao & Aziz 2020) is the von Mises-Fisher's cheap relative:

    density  N (1 + mu.x)^k         a = (D-1)/2 + k,  b = (D-1)/2
    log N    = log Gamma(a + b) - log Gamma(a) - b log pi - (a + b) log 2             (eq 6)
    1 + mu.x = 2 X / (X + Y)        X ~ Gamma(a), Y ~ Gamma(b), exactly: no rejection

With ``(1 + mu.x)/2 = 1 - |x - mu|^2 / 4`` the k log 2 cancels from the density.

Kullback-Leibler divergences, for ``torch.distributions.kl_divergence``:

    KL(vMF_1 | vMF_2)  = log C(k1) - log C(k2) + A(k1) (k1 - k2 mu1.mu2)
    KL(p | uniform)    = log area - H(p)
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, constraints, register_kl

from baselines.distributions.location_concentration import (
    LocationConcentration,
    check_value,
    squared_chord,
    unit_vector,
)
from baselines.distributions.tangent import at_angle
from baselines.distributions.vmf_normalizer import log_sphere_area, log_vmf_peak
from baselines.distributions.von_mises_fisher import VonMisesFisher
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_shape, check_count
from laplace_metric.distributions._angle_quadrature import Angle


class HypersphericalUniform(Distribution):
    """Uniform on the unit sphere in R^D; a von Mises-Fisher of concentration 0.

    Parameters
    ----------
    dimension : int >= 2
        Dimension D of the ambient space.
    batch_shape : tuple of int
        Shape of the batch of equal distributions. Default: ().
    dtype, device : torch.dtype, torch.device or None
        Dtype and device of the draws. None, the default: those of torch.
    validate_args : bool, optional
        Check the values given to ``log_prob``. None, the default: as torch.distributions is set.

    Raises
    ------
    InputError
        For a dimension below 2.

    Examples
    --------
    >>> HypersphericalUniform(3).entropy()
    tensor(2.5310)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        dimension: int,
        batch_shape: Any = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.dimension = check_count("dimension", dimension, 2)
        self._zero = torch.zeros((), dtype=dtype, device=device)
        shape = as_shape("batch_shape", batch_shape)
        super().__init__(shape, torch.Size([self.dimension]), validate_args)

    @property
    def mean(self) -> Float[Tensor, "*B D"]:
        """0 [..., D]."""
        return self._zero.expand(*self.batch_shape, *self.event_shape)

    @property
    def variance(self) -> Float[Tensor, "*B D"]:
        """1/D of each coordinate [..., D]."""
        return self.mean + 1 / self.dimension

    def log_prob(self, value: Float[Tensor, "*V D"]) -> Float[Tensor, " ..."]:
        """Return [...] of unit vectors [..., D], by surface measure."""
        check_value(self, value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        return (self._zero - log_sphere_area(self.dimension)).expand(shape)

    def entropy(self) -> Float[Tensor, "*B"]:
        """Return ``log area`` [...]."""
        return (self._zero + log_sphere_area(self.dimension)).expand(self.batch_shape)

    def rsample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008  as in torch
        seed: Seed = None,
    ) -> Float[Tensor, "... D"]:
        """Return normalised standard normal vectors [*sample_shape, ..., D]."""
        generator, sample_shape = as_generator(seed), as_shape("sample_shape", sample_shape)
        like, shape = self._zero, self._extended_shape(sample_shape)
        z = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return nn.functional.normalize(z, dim=-1, eps=torch.finfo(like.dtype).tiny)

    sample = rsample

    def expand(self, batch_shape: Any, _instance: Any = None) -> HypersphericalUniform:
        """Return the same for another batch."""
        like = self._zero
        return HypersphericalUniform(self.dimension, batch_shape, like.dtype, like.device)


class PowerSpherical(LocationConcentration):
    """Power spherical with mean direction ``loc`` and concentration k; uniform at k = 0.

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
        Mean direction mu.
    concentration : Tensor [...] in [0, inf)
        Concentration k, broadcast with loc's batch. Near the von Mises-Fisher of the same k for k
        << D only.
    validate_args : bool, optional
        Check both, and the values given to ``log_prob``. None, the default: as torch.distributions
        is set.

    Raises
    ------
    InputError, DtypeError, ValueError
        As ``LocationConcentration``.

    Examples
    --------
    >>> p = PowerSpherical(torch.tensor([1.0, 0.0, 0.0]), 2.0)
    >>> p.mean, p.log_prob(torch.tensor([1.0, 0.0, 0.0])).exp()  # 3 / (4 pi)
    (tensor([0.5000, 0.0000, 0.0000]), tensor(0.2387))
    """

    @property
    def mean(self) -> Float[Tensor, "*B D"]:
        """``k / (D - 1 + k) mu`` [..., D]."""
        resultant = self.concentration / (self.dimension - 1 + self.concentration)
        return resultant[..., None] * self.loc

    @property
    def mode(self) -> Float[Tensor, "*B D"]:
        """mu [..., D]."""
        return self.loc

    def _log_density(self, value: Tensor) -> Tensor:
        chord = squared_chord(value, self.loc)
        return self._log_peak().to(chord.dtype) + torch.special.xlog1py(
            self.concentration, -chord.clamp_max(4) / 4
        )

    def entropy(self) -> Float[Tensor, "*B"]:
        """Return ``-log peak - k (psi(a) - psi(a + b))`` [...]."""
        a, b = self._gammas()
        k = self.concentration.double()
        spread = k * (torch.digamma(a + b) - torch.digamma(a))
        return (spread - self._log_peak()).to(self.loc.dtype)

    def _gammas(self) -> tuple[Tensor, Tensor]:
        """Return a and b [...] in float64."""
        b = torch.full_like(self.concentration, (self.dimension - 1) / 2, dtype=torch.float64)
        return b + self.concentration, b

    def _log_peak(self) -> Tensor:
        """Return ``log N + k log 2``, at the mode, in float64."""
        a, b = self._gammas()
        flat = b * math.log(math.pi) + 2 * b * math.log(2)
        return torch.lgamma(a + b) - torch.lgamma(a) - flat

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        a, b = (x.expand(*sample_shape, *self.batch_shape) for x in self._gammas())
        x = torch._standard_gamma(a, generator=generator)
        y = torch._standard_gamma(b.contiguous(), generator=generator)
        angle = Angle((x - y) / (x + y), 2 * x.sqrt() * y.sqrt() / (x + y))
        return at_angle(self.loc, Angle(*(v.to(self.loc.dtype) for v in angle)), generator)


def kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Float[Tensor, " ..."]:
    """Compute ``-H(p) - E_p log q`` by ``E_p |x - mu_q|^2 = 2 (1 - A) + A |mu_p - mu_q|^2``.

    Examples
    --------
    >>> p = VonMisesFisher(torch.tensor([1.0, 0.0]), 3.0)
    >>> bool(kl_vmf_vmf(p, p).abs() < 1e-6)
    True
    """
    a, k = p.resultant.double(), q.concentration.double()
    apart = (1 - a) + a * squared_chord(p.loc.double(), q.loc.double()) / 2
    cross = k * apart - log_vmf_peak(k, q.dimension)
    return (cross - p.entropy()).to(p.loc.dtype)


def kl_uniform(
    p: VonMisesFisher | PowerSpherical, q: HypersphericalUniform
) -> Float[Tensor, " ..."]:
    """Compute the divergence to the uniform distribution; 0 at concentration 0.

    Examples
    --------
    >>> p = VonMisesFisher(torch.tensor([1.0, 0.0]), 3.0)
    >>> kl_uniform(p, HypersphericalUniform(2))
    tensor(0.8446)
    """
    return log_sphere_area(q.dimension) - p.entropy()


register_kl(VonMisesFisher, VonMisesFisher)(kl_vmf_vmf)
register_kl(VonMisesFisher, HypersphericalUniform)(kl_uniform)
register_kl(PowerSpherical, HypersphericalUniform)(kl_uniform)
