"""The non-isotropic von Mises-Fisher (Kirchhof et al. 2022), normalised exactly.

    y = K z / |K z| ~ vMF(K mu / |K mu|, |K mu|)        K = diag(k), k > 0
    density of z:  C_D(|K mu|) exp(K mu . K z / |K z|) det K / |K z|^D

The last factor is the Jacobian of z -> y on the sphere. The published density leaves it out, and
does not integrate to 1 unless all k are equal.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import constraints

from baselines.distributions.location_concentration import (
    LocationConcentration,
    finite_positive,
    unit_vector,
)
from baselines.distributions.von_mises_fisher import VonMisesFisher


class NonIsotropicVonMisesFisher(LocationConcentration):
    """A von Mises-Fisher with one concentration for each coordinate.

    Parameters
    ----------
    loc : Tensor [..., D] of unit length
        Mean direction mu before the scaling.
    concentration : Tensor [..., D] in (0, inf)
        Concentration k of each coordinate; all equal to one number gives the von Mises-Fisher of
        that concentration.
    validate_args : bool, optional
        Check both, and the values given to ``log_prob``. None, the default: as torch.distributions
        is set.

    Raises
    ------
    InputError, DtypeError, ValueError
        As ``LocationConcentration``.

    Examples
    --------
    >>> mu = torch.tensor([1.0, 0.0, 0.0])
    >>> p = NonIsotropicVonMisesFisher(mu, torch.tensor([5.0, 5.0, 5.0]))
    >>> p.log_prob(mu), VonMisesFisher(mu, 5.0).log_prob(mu)
    (tensor(-0.2284), tensor(-0.2284))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": unit_vector,
        "concentration": constraints.independent(finite_positive, 1),
    }

    @property
    def isotropic(self) -> VonMisesFisher:
        """The distribution of y."""
        scaled = self.concentration * self.loc
        length = scaled.norm(dim=-1)
        return VonMisesFisher(scaled / length[..., None], length, validate_args=False)

    def _log_density(self, value: Tensor) -> Tensor:
        scaled = self.concentration * value
        length = scaled.norm(dim=-1)
        jacobian = self.concentration.log().sum(-1) - self.dimension * length.log()
        return self.isotropic.log_prob(scaled / length[..., None]) + jacobian

    def _draw(self, sample_shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        y = self.isotropic.rsample(sample_shape, generator)
        return nn.functional.normalize(y / self.concentration, dim=-1)
