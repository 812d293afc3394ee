"""Align the latent spaces of networks that were trained apart.

A metric loss fixes an embedding up to an orthogonal matrix, so members of an ensemble agree only
after

    min over orthogonal R_m of sum_m |Z_m R_m - Z_mean|_F^2,    Z_mean = mean_m Z_m R_m

(generalised Procrustes analysis, Gower 1975): each R_m is an orthogonal Procrustes problem, solved
by ``scipy.linalg.orthogonal_procrustes``, and the mean is taken again, ten times.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from laplace_metric.errors import InputError


def align(embeddings: Tensor, *, iterations: int = 10) -> Tensor:
    """Return orthogonal matrices R [M, Z, Z] that align M embeddings [M, N, Z] of N inputs.

    The first iteration aligns everything with the first member, whose orientation is kept nearly.
    No shift is taken out: directions are compared from the origin. Time
    O(iterations M (N + Z) Z^2), memory M N Z numbers in float64.

    Raises
    ------
    InputError
        For other shapes.

    Examples
    --------
    >>> z = torch.randn(1, 20, 3)
    >>> turn = torch.linalg.qr(torch.randn(3, 3)).Q
    >>> both = torch.cat([z, z @ turn])
    >>> torch.allclose(both[1] @ align(both)[1], both[0] @ align(both)[0], atol=1e-5)
    True
    """
    if embeddings.ndim != 3:
        raise InputError(f"embeddings has shape {tuple(embeddings.shape)}: pass [M, N, Z].")
    z = embeddings.double().cpu().numpy()
    mean = z[0]
    for _ in range(iterations):
        rotations = np.stack([orthogonal_procrustes(member, mean)[0] for member in z])
        mean = (z @ rotations).mean(0)
    return torch.from_numpy(rotations).to(embeddings)
