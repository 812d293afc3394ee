"""Expected distance between uncertain embeddings, as a plain distance of one more coordinate.

For independent x and y with means m and ``s^2 = E|z|^2 - |m|^2``, the trace of the covariance,

    E|x - y|^2 = |m_x - m_y|^2 + s_x^2 + s_y^2 = |[m_x, 0] - [m_y, s_y]|^2 + s_x^2      (exact)

so an engine that knows nothing of uncertainty ranks a gallery stored as ``[m_y, s_y]`` by expected
distance. On the sphere E z is shorter than the mean direction u: with t the expected squared
distance from u, as ``ProjectedNormal`` has it,

    m = R u     R = E cos = 1 - t / 2     s^2 = 1 - R^2

The closed form of Chun 2024 (PCME++, CSD) is the same with m = u and s^2 = t.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def moments(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> tuple[Tensor, Tensor]:
    """Return ``m`` [N, Z] and ``s`` [N] of embeddings ``mean`` [N, Z] with ``trace`` [N] >= 0.

    Examples
    --------
    >>> m, s = moments(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]), spherical=True)
    >>> m, s ** 2
    (tensor([[0.5000, 0.0000]]), tensor([0.7500]))
    """
    if not spherical:
        return mean, trace.sqrt()
    length = 1 - trace / 2
    return mean * length[:, None], (trace * (1 - trace / 4)).sqrt()


def gallery_vectors(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> Float[Tensor, "N Z_plus_1"]:
    """Return ``[m, s]`` [N, Z + 1], to store in any engine that ranks by Euclidean distance.

    Examples
    --------
    >>> gallery_vectors(torch.zeros(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[0., 0., 2.]])
    """
    m, s = moments(mean, trace, spherical=spherical)
    return torch.cat([m, s[:, None]], 1)


def query_vectors(
    mean: Float[Tensor, "Q Z"], trace: Float[Tensor, " Q"], *, spherical: bool
) -> Float[Tensor, "Q Z_plus_1"]:
    """Return ``[m, 0]`` [Q, Z + 1]: the query for such an engine.

    Examples
    --------
    >>> query_vectors(torch.ones(1, 2), torch.tensor([4.0]), spherical=False)
    tensor([[1., 1., 0.]])
    """
    m, _ = moments(mean, trace, spherical=spherical)
    return torch.cat([m, torch.zeros_like(m[:, :1])], 1)
