"""What engines call a distance, against the distance itself."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.examples.engines import distances
from laplace_metric.search._neighbours import gallery_vectors, moments, query_vectors


def directions(seed: int, *shape: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 7), st.integers(2, 9))
def test_every_kind_is_the_euclidean_distance(seed, q, n, z):
    x, y = directions(seed, q, 1, z), directions(seed + 1, n, z)
    d, c = np.linalg.norm(x - y, axis=2), (x * y).sum(2)
    told = {
        "squared": distances.from_squared(d**2),
        "cosine": distances.from_cosine(c),
        "cosine distance": distances.from_cosine_distance(1 - c),
        "l2 score": distances.from_l2_score(1 / (1 + d**2)),
        "cosine score": distances.from_cosine_score((1 + c) / 2),
    }
    for name, value in told.items():
        np.testing.assert_allclose(value, d, atol=1e-7, err_msg=name)


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_the_coordinate_more_is_undone(seed, q, n, spherical):
    g = torch.Generator().manual_seed(seed)
    mean_x, mean_y = (torch.randn(m, 5, generator=g, dtype=torch.float64) for m in (q, n))
    t_x, t_y = (3 * torch.rand(m, generator=g, dtype=torch.float64) for m in (q, n))
    if spherical:
        mean_x, mean_y = (torch.nn.functional.normalize(m, dim=1) for m in (mean_x, mean_y))
    stored = gallery_vectors(mean_y, t_y, spherical=spherical)
    asked = query_vectors(mean_x, t_x, spherical=spherical)
    (m_x, s_x), (m_y, s_y) = (
        moments(m, t, spherical=spherical) for m, t in ((mean_x, t_x), (mean_y, t_y))
    )
    told = (asked[:, None] - stored).norm(dim=2).numpy()
    spread, how = s_y.expand(q, n).numpy(), {"spherical": spherical}
    means = (mean_x[:, None] - mean_y).norm(dim=2).numpy()
    np.testing.assert_allclose(
        distances.of_means(told, spread, s_x.numpy(), **how), means, atol=1e-6
    )
    expected = (m_x[:, None] - m_y).square().sum(2) + s_x.square()[:, None] + s_y.square()
    np.testing.assert_allclose(
        distances.expected_squared(means, spread, s_x.numpy(), **how), expected, atol=1e-9
    )


def test_no_neighbour_stays_infinitely_far():
    nothing = [[np.inf]], [[0.0]], [0.3]
    for spherical in (True, False):
        assert distances.of_means(*nothing, spherical=spherical) == np.inf
