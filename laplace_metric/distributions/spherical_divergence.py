"""Kullback-Leibler divergences on the sphere, for ``torch.distributions.kl_divergence``.

KL(vMF_1 | vMF_2)  = log C(k1) - log C(k2) + A(k1) (k1 - k2 mu1.mu2)
KL(p | uniform)    = log area - H(p)
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import register_kl

from laplace_metric.distributions.hyperspherical_uniform import (
    HypersphericalUniform,
    log_sphere_area,
)
from laplace_metric.distributions.location_concentration import squared_chord
from laplace_metric.distributions.power_spherical import PowerSpherical
from laplace_metric.distributions.vmf_normalizer import log_vmf_peak
from laplace_metric.distributions.von_mises_fisher import VonMisesFisher


def kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """``-H(p) - E_p log q`` with ``E_p |x - mu_q|^2 / 2 = (1 - A) + A |mu_p - mu_q|^2 / 2``.

    Examples
    --------
    >>> import torch
    >>> p = VonMisesFisher(torch.tensor([1.0, 0.0]), 3.0)
    >>> bool(kl_vmf_vmf(p, p).abs() < 1e-6)
    True
    """
    a, k = p.resultant.double(), q.concentration.double()
    apart = (1 - a) + a * squared_chord(p.loc.double(), q.loc.double()) / 2
    cross = k * apart - log_vmf_peak(k, q.dimension)
    return (cross - p.entropy()).to(p.loc.dtype)


def kl_uniform(p: VonMisesFisher | PowerSpherical, q: HypersphericalUniform) -> Tensor:
    """0 at concentration 0.

    Examples
    --------
    >>> import torch
    >>> p = VonMisesFisher(torch.tensor([1.0, 0.0]), 3.0)
    >>> kl_uniform(p, HypersphericalUniform(2))
    tensor(0.8446)
    """
    return log_sphere_area(q.dimension) - p.entropy()


register_kl(VonMisesFisher, VonMisesFisher)(kl_vmf_vmf)
register_kl(VonMisesFisher, HypersphericalUniform)(kl_uniform)
register_kl(PowerSpherical, HypersphericalUniform)(kl_uniform)
