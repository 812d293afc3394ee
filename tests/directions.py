"""Expected squared distance of an uncertain direction from its mean direction, on the sphere."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import log_ndtr
from torch import Tensor

NODES = 400
"""Nodes of the polar cosine and of the azimuth, for spreads down to a hundredth."""


def chord_on_the_sphere(mean: Tensor, covariance: Tensor) -> float:
    """Integrate ``|d - u|^2`` over the density of ``d = z / |z|``, ``z ~ N(mean, covariance)``.

    In three dimensions the density of a projected normal has a closed form (Hernandez-Stumpfhauser,
    Breidt and van der Woerd 2017, eq. 2), which shares nothing with the library's quadrature.
    """
    m, c = mean.numpy(), covariance.numpy()
    u = m / np.linalg.norm(m)
    frame = np.linalg.svd(u[None])[2]
    frame[0] = u
    cosine, weight = np.polynomial.legendre.leggauss(NODES)
    angle = 2 * np.pi * np.arange(NODES) / NODES
    sine = np.sqrt(1 - cosine**2)
    d = (
        np.stack(
            [
                cosine[:, None] + 0 * angle,
                sine[:, None] * np.cos(angle),
                sine[:, None] * np.sin(angle),
            ],
            -1,
        )
        @ frame
    )
    inverse = np.linalg.inv(c)
    a = np.einsum("pqi,ij,pqj->pq", d, inverse, d)
    t = d @ inverse @ m / np.sqrt(a)
    rest = -m @ inverse @ m / 2
    scale = (2 * np.pi) ** -1.5 / np.sqrt(np.linalg.det(c)) / a**1.5
    body = t * np.exp(rest) + (1 + t**2) * np.sqrt(2 * np.pi) * np.exp(
        t**2 / 2 + rest + log_ndtr(t)
    )
    density = scale * body * weight[:, None] * 2 * np.pi / NODES
    assert abs(density.sum() - 1) < 1e-9
    return float((density * (2 - 2 * cosine[:, None])).sum())


def chord_of_weights(weight: Tensor, covariance: Tensor, h: Tensor) -> float:
    """Return it for ``z = W h``, with the covariance of the rows of W, one after another."""
    jacobian = torch.kron(torch.eye(len(weight), dtype=h.dtype), h[None])
    return chord_on_the_sphere(weight @ h, jacobian @ covariance @ jacobian.mT)
