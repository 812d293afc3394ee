"""One more coordinate against the closed form of the expected distance, and against draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.distributions import DiagonalCovariance, ProjectedNormal
from laplace_metric.laplace._distances import squared_distance
from laplace_metric.laplace._moments import EmbeddingPairs
from laplace_metric.search._neighbours import gallery_vectors, moments, query_vectors

N, Z = 40, 5


def random(spherical: bool, seed: int = 0):
    """Embeddings and traces of a query and a gallery."""
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(2, N, Z, generator=g, dtype=torch.float64)
    if spherical:
        mean = torch.nn.functional.normalize(mean, dim=-1)
    return mean, 3 * torch.rand(2, N, generator=g, dtype=torch.float64)


def expected(mean, trace, spherical: bool):
    """[N, N] from the definition."""
    if not spherical:
        return torch.cdist(*mean).square() + trace[0][:, None] + trace[1]
    x, y = (m / (1 + t).sqrt()[:, None] for m, t in zip(mean, trace, strict=True))
    return 2 - 2 * x @ y.mT


@pytest.mark.parametrize("spherical", [True, False])
def test_a_plain_distance_is_the_expected_one_less_the_query_s_spread(spherical):
    mean, trace = random(spherical)
    asked = query_vectors(mean[0], trace[0], spherical=spherical)
    stored = gallery_vectors(mean[1], trace[1], spherical=spherical)
    spread = moments(mean[0], trace[0], spherical=spherical)[1].square()
    plain = torch.cdist(asked, stored).square() + spread[:, None]
    torch.testing.assert_close(plain, expected(mean, trace, spherical))
    ranked = torch.cdist(asked, stored).argsort(1)
    assert torch.equal(ranked, expected(mean, trace, spherical).argsort(1))
    assert not torch.equal(ranked, torch.cdist(*mean).argsort(1))


def test_raw_moments_are_those_of_independent_gaussians():
    mean, _ = random(False)
    g = torch.Generator().manual_seed(1)
    left, right = torch.rand(2, N, Z, generator=g, dtype=torch.float64)
    of = DiagonalCovariance
    exact = squared_distance(EmbeddingPairs(*mean, of(left), of(right), None), spherical=False).mean
    asked = query_vectors(mean[0], left.sum(1), spherical=False)
    stored = gallery_vectors(mean[1], right.sum(1), spherical=False)
    torch.testing.assert_close((asked - stored).square().sum(1) + left.sum(1), exact)


def test_the_length_of_the_mean_is_that_of_draws_on_the_sphere():
    raw = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    law = ProjectedNormal(raw, DiagonalCovariance(torch.full_like(raw, 0.04)))
    m, s = moments(law.mean, law.variance.sum(1), spherical=True)
    drawn = law.sample(40_000, torch.Generator().manual_seed(0)).mean(0)
    torch.testing.assert_close(m, drawn, atol=3e-3, rtol=0)
    torch.testing.assert_close(s.square(), 1 - m.square().sum(1))


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1e6), st.booleans())
def test_moments_stay_finite_and_in_range(trace, spherical):
    u = torch.eye(Z, dtype=torch.float64)[:1]
    m, s = moments(u, torch.tensor([trace], dtype=torch.float64), spherical=spherical)
    total = float(m.square().sum() + s.square().sum())
    assert total == pytest.approx(1.0 if spherical else 1 + trace)
