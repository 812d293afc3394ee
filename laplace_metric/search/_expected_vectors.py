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

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.errors import WideDrawsWarning, callers_line

COMPARED = 500
"""Items whose expected distances are compared with their uncertainty, at most."""


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


def ranks_by_uncertainty(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> bool:
    """Return True if expected distances follow the uncertainty more than the distances of means.

    The correlation of one item's expected distances to the others with their ``trace`` is then
    larger than that with the squared distances of the means, on average over items.

    Examples
    --------
    >>> mean, trace = torch.eye(3), torch.tensor([0.1, 0.2, 0.3])
    >>> wide = 100 * trace
    >>> [ranks_by_uncertainty(mean, s, spherical=False) for s in (trace / 10, wide)]
    [False, True]
    """
    rows = torch.linspace(0, len(mean) - 1, min(len(mean), COMPARED)).round().long()
    u, t = mean[rows.to(mean.device)].double(), trace[rows.to(trace.device)].double()
    m, s = moments(u, t, spherical=spherical)
    expected = torch.cdist(m, m).square() + s.square()
    between = torch.cdist(u, u).square()
    by_trace = _correlation(expected, t.expand_as(expected))
    return bool(by_trace > _correlation(expected, between))


def _correlation(a: Float[Tensor, "n n"], b: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the mean correlation of two rows."""
    a, b = (x - x.mean(1, keepdim=True) for x in (a, b))
    return ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()


def warn_if_by_uncertainty(
    mean: Float[Tensor, "N Z"], trace: Float[Tensor, " N"], *, spherical: bool
) -> None:
    """Warn if expected distances rank items by their uncertainty more than by their means."""
    if ranks_by_uncertainty(mean, trace, spherical=spherical):
        warnings.warn(
            "rank_by='expected' ranks these items by their uncertainty more than by the distance "
            "of the means: the most certain ones are found, whatever is asked. Pass "
            "rank_by='mean' or 'predictive', or fit with a smaller temperature= than "
            "embedder.posterior_.temperature.",
            WideDrawsWarning,
            stacklevel=callers_line(),
        )
