"""A generative process whose posteriors are known (Kirchhof et al. 2023a, section 5.1, appendix B).

    x ~ U[0, 1]^D,  z | x ~ posterior(mu(x), kappa(x)),  z+ | z ~ vMF(z, kappa_pos),  x- ~ U[0, 1]^D

mu and kappa are random networks. Contrastive pairs come backwards: candidates (x, x+) with latents
(z, z+) are accepted with probability

    true:       e^{kappa_pos (z.z+ - 1)}, which gives the z+ above
    published:  C(kappa_pos) e^{kappa_pos z.z+} / (C(kappa_pos) e^{kappa_pos z.z+} + C(0))

The second (eq. 53) is a sigmoid in z.z+: its positives are farther apart than vMF(z, kappa_pos).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.distributions import (
    SphericalGaussian,
    SphericalLaplace,
    VonMisesFisher,
    log_vmf_normalizer,
)
from laplace_metric.errors import UnknownNameError

FAMILIES = ("vmf", "gaussian", "laplace", "dirac")
ACCEPTANCES = ("true", "published")
POOL = 1024
"""Candidates on each side of a pool; all of their pairs are tried."""


@dataclass(frozen=True)
class Setting:
    """Of one process: dimension, family of the posterior, range of kappa."""

    dimension: int = 10
    family: str = "vmf"
    smallest: float = 16.0
    largest: float = 32.0
    kappa_pos: float = 20.0
    acceptance: str = "true"

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UnknownNameError("family", self.family, FAMILIES)
        if self.acceptance not in ACCEPTANCES:
            raise UnknownNameError("acceptance", self.acceptance, ACCEPTANCES)


def mixing(n_inputs: int, n_layers: int, n_outputs: int) -> nn.Sequential:
    """A random network of square leaky-ReLU layers with weights of unit columns."""
    layers: list[nn.Module] = []
    for i in range(n_layers):
        linear = nn.Linear(n_inputs, n_outputs if i == n_layers - 1 else n_inputs)
        with torch.no_grad():
            linear.weight.uniform_(-1, 1)
            linear.weight.div_(linear.weight.norm(dim=0, keepdim=True))
            linear.bias.zero_()
        layers += [linear, nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Process:
    """mu, kappa, latents and pairs.

    Examples
    --------
    >>> process = Process(Setting(dimension=3), seed=0)
    >>> x, x_positive = process.pairs(8)
    >>> x.shape, bool((process.kappa(x) >= 15).all())
    (torch.Size([8, 3]), True)
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            self.location = self._spread_out()
            self.logit = mixing(setting.dimension, 2, 1)
        probe = self._raw_kappa(self.inputs(10_000))
        self._range = probe.min(), probe.max()

    def inputs(self, n: int) -> Tensor:
        """x [n, D]."""
        return torch.rand(n, self.setting.dimension, generator=self.generator)

    @torch.no_grad()
    def mu(self, x: Tensor) -> Tensor:
        """[n, D] of unit length."""
        return nn.functional.normalize(self.location(x - 0.5), dim=-1)

    def kappa(self, x: Tensor) -> Tensor:
        """[n], in the range of the setting: ``1 + exp(a k(x) + b)``."""
        low, high = (math.log(k - 1) for k in (self.setting.smallest, self.setting.largest))
        share = (self._raw_kappa(x) - self._range[0]) / (self._range[1] - self._range[0])
        return 1 + torch.exp(low + (high - low) * share)

    def posterior(self, x: Tensor) -> VonMisesFisher | SphericalGaussian | SphericalLaplace:
        """p(z | x)."""
        mu, kappa = self.mu(x), self.kappa(x)
        if self.setting.family == "gaussian":
            return SphericalGaussian(mu, kappa)
        if self.setting.family == "laplace":
            return SphericalLaplace(mu, kappa)
        return VonMisesFisher(mu, kappa)

    def latents(self, x: Tensor) -> Tensor:
        """One z [n, D] of each x."""
        if self.setting.family == "dirac":
            return self.mu(x)
        return self.posterior(x).sample(seed=self.generator)

    def pairs(self, n: int) -> tuple[Tensor, Tensor]:
        """x, x+ [n, D]: every pair of a fresh pool is a candidate, until there are n."""
        found: list[tuple[Tensor, Tensor]] = []
        while sum(len(x) for x, _ in found) < n:
            x, other = self.inputs(POOL), self.inputs(POOL)
            cosine = self.latents(x) @ self.latents(other).mT
            chance = torch.rand(cosine.shape, generator=self.generator)
            i, j = (chance < self._acceptance(cosine)).nonzero(as_tuple=True)
            keep = torch.randperm(len(i), generator=self.generator)[:n]
            found.append((x[i[keep]], other[j[keep]]))
        firsts, seconds = zip(*found, strict=True)
        return torch.cat(firsts)[:n], torch.cat(seconds)[:n]

    def _acceptance(self, cosine: Tensor) -> Tensor:
        k, d = torch.tensor([self.setting.kappa_pos, 0.0]), self.setting.dimension
        if self.setting.acceptance == "true":
            return torch.exp(k[0] * (cosine - 1))
        log_c = log_vmf_normalizer(k, d)
        return torch.sigmoid(k[0] * cosine + log_c[0] - log_c[1])

    @torch.no_grad()
    def _raw_kappa(self, x: Tensor) -> Tensor:
        return self.logit(x - 0.5)[:, 0]

    def _spread_out(self) -> nn.Sequential:
        """A network under which some two of 1,000 points have a cosine below 0.5."""
        while True:
            network = mixing(self.setting.dimension, 3, self.setting.dimension)
            z = nn.functional.normalize(network(self.inputs(1_000) - 0.5), dim=-1)
            if float((z @ z.mT).min()) < 0.5:
                return network
