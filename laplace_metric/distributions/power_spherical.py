"""The power spherical distribution (De Cao & Aziz 2020), the von Mises-Fisher's cheap relative.

    density  N (1 + mu.x)^k         a = (D-1)/2 + k,  b = (D-1)/2
    log N    = log Gamma(a + b) - log Gamma(a) - b log pi - (a + b) log 2             (eq 6)
    1 + mu.x = 2 X / (X + Y)        X ~ Gamma(a), Y ~ Gamma(b), exactly: no rejection

With ``(1 + mu.x)/2 = 1 - |x - mu|^2 / 4`` the k log 2 cancels from the density.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laplace_metric.distributions.location_concentration import (
    LocationConcentration,
    squared_chord,
)
from laplace_metric.distributions.tangent import at_angle
from laplace_metric.distributions.vmf_cosine import Angle


class PowerSpherical(LocationConcentration):
    """Power spherical with mean direction ``loc`` and concentration k; uniform at k = 0.

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
    concentration : Tensor [...] in [0, inf)
        k, broadcast with loc's batch. Near the von Mises-Fisher of the same k for k << D only.
    validate_args : bool, optional

    Raises
    ------
    InputError, DtypeError, ValueError as ``VonMisesFisher``.

    Examples
    --------
    >>> p = PowerSpherical(torch.tensor([1.0, 0.0, 0.0]), 2.0)
    >>> p.mean, p.log_prob(torch.tensor([1.0, 0.0, 0.0])).exp()  # 3 / (4 pi)
    (tensor([0.5000, 0.0000, 0.0000]), tensor(0.2387))
    """

    @property
    def mean(self) -> Tensor:
        """``k / (D - 1 + k) mu`` [..., D]."""
        resultant = self.concentration / (self.dimension - 1 + self.concentration)
        return resultant[..., None] * self.loc

    @property
    def mode(self) -> Tensor:
        """mu [..., D]."""
        return self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """[...] for unit vectors [..., D], by surface measure."""
        if self._validate_args:
            self._validate_sample(value)
        chord = squared_chord(value, self.loc)
        return self._log_peak().to(chord.dtype) + torch.special.xlog1py(
            self.concentration, -chord.clamp_max(4) / 4
        )

    def entropy(self) -> Tensor:
        """``-log peak - k (psi(a) - psi(a + b))`` [...]."""
        a, b = self._gammas()
        k = self.concentration.double()
        spread = k * (torch.digamma(a + b) - torch.digamma(a))
        return (spread - self._log_peak()).to(self.loc.dtype)

    def _gammas(self) -> tuple[Tensor, Tensor]:
        """a and b [...] in float64."""
        b = torch.full_like(self.concentration, (self.dimension - 1) / 2, dtype=torch.float64)
        return b + self.concentration, b

    def _log_peak(self) -> Tensor:
        """``log N + k log 2``, at the mode, in float64."""
        a, b = self._gammas()
        flat = b * math.log(math.pi) + 2 * b * math.log(2)
        return torch.lgamma(a + b) - torch.lgamma(a) - flat

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        a, b = (x.expand(*sample_shape, *self.batch_shape) for x in self._gammas())
        x = torch._standard_gamma(a, generator=generator)
        y = torch._standard_gamma(b.contiguous(), generator=generator)
        angle = Angle((x - y) / (x + y), 2 * x.sqrt() * y.sqrt() / (x + y))
        return at_angle(self.loc, Angle(*(v.to(self.loc.dtype) for v in angle)), generator)
