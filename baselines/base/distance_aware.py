"""Parts that keep distances in a classifier: spectral normalisation, and a Gaussian process on top.

The process has random Fourier features: it is linear in phi, with an exact posterior variance.

    phi(x) = sqrt(2/R) cos(A x + b)      A_rk ~ N(0, 1/l^2), b_r ~ U(0, 2 pi), both frozen
    E[phi(x) . phi(y)] = exp(-|x - y|^2 / (2 l^2))                     (Rahimi and Recht 2007)

    logits_c(x) = beta_c . phi(x)
    v(x) = phi(x)^T (ridge I + Phi^T Phi)^-1 phi(x)       (Kirchhof et al. 2023b, eq. 7)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

NORMALIZED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def spectral_normalize(model: nn.Module, head: nn.Module) -> None:
    """Divide the weight of each linear and convolutional layer, but the head's, by its norm.

    The norm is the largest singular value, followed by power iteration in train mode (Miyato et
    al. 2018); a kernel counts as the matrix [out, in * kernel]. Layers that have it are left alone.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.copy_(torch.eye(3, 4) * torch.tensor([[4.0], [2.0], [1.0]]))
    >>> spectral_normalize(model, model[2])
    >>> bool((torch.linalg.matrix_norm(model[0].weight, 2) - 1).abs() < 1e-2)
    True
    >>> parametrize.is_parametrized(model[2])
    False
    """
    in_head = {id(module) for module in head.modules()}
    for module in list(model.modules()):
        hidden = isinstance(module, NORMALIZED) and id(module) not in in_head
        if hidden and not parametrize.is_parametrized(module, "weight"):
            parametrizations.spectral_norm(module)


class RandomFeatureProcess(nn.Module):
    """Vectors [B, W] -> logits [B, C]; ``variance`` [B] is that of each of them.

    R C weights are learnt by gradients, R W + R frozen, R^2 kept for the variance.

    Parameters
    ----------
    n_inputs, n_classes, n_features : int
        Sizes W of the input, C of the classes and R of the random features.
    lengthscale : float > 0
        Length scale l of the kernel, in units of the input.
    ridge : float > 0
        Prior precision of the weights beta.

    Examples
    --------
    >>> process = RandomFeatureProcess(2, 3, n_features=512, ridge=1.0)
    >>> x = torch.zeros(1, 2)
    >>> process.observe([x] * 3)
    >>> bool((process.variance(x) - 1 / 4).abs() < 0.05)  # 1 / (ridge / |phi|^2 + n)
    True
    """

    directions: Tensor
    phases: Tensor
    cholesky: Tensor

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        n_features: int = 1024,
        lengthscale: float = 1.0,
        ridge: float = 1.0,
    ) -> None:
        super().__init__()
        self.ridge = ridge
        self.register_buffer("directions", torch.randn(n_features, n_inputs) / lengthscale)
        self.register_buffer("phases", 2 * math.pi * torch.rand(n_features))
        self.register_buffer("cholesky", math.sqrt(ridge) * torch.eye(n_features))
        self.beta = nn.Linear(n_features, n_classes, bias=False)

    def features(self, x: Tensor) -> Tensor:
        """Return phi [B, R]."""
        wave = nn.functional.linear(x, self.directions, self.phases).cos()
        return math.sqrt(2 / len(self.phases)) * wave

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, C]."""
        return self.beta(self.features(x))

    @torch.no_grad()
    def observe(self, batches: Iterable[Tensor]) -> None:
        """Set the covariance from these inputs [B, W] alone.

        The sum and its Cholesky factor are in float64: the ridge may be small next to N.
        """
        like = self.cholesky
        precision = self.ridge * torch.eye(len(like), dtype=torch.float64, device=like.device)
        for x in batches:
            phi = self.features(x).double()
            precision += phi.T @ phi
        self.cholesky = torch.linalg.cholesky(precision).to(like)

    def variance(self, x: Tensor) -> Tensor:
        """Return ``|L^-1 phi|^2`` [B] with ``L L^T = ridge I + Phi^T Phi``, in (0, 2 / ridge]."""
        phi = self.features(x)
        return torch.linalg.solve_triangular(self.cholesky, phi.T, upper=False).square().sum(0)
