"""One more coordinate against the closed form of the expected distance, and against draws."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.distributions import DiagonalCovariance, ProjectedNormal
from laplace_metric.search._expected_vectors import gallery_vectors, moments, query_vectors

N, Z = 40, 5


def random(spherical: bool, seed: int = 0):
    """Embeddings of a query and a gallery, and their expected squared distances from the mean."""
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(2, N, Z, generator=g, dtype=torch.float64)
    if spherical:
        mean = torch.nn.functional.normalize(mean, dim=-1)
    most = 2 if spherical else 3
    return mean, most * torch.rand(2, N, generator=g, dtype=torch.float64)


def expected(mean, trace, spherical: bool):
    """[N, N] from the definition."""
    if not spherical:
        return torch.cdist(*mean).square() + trace[0][:, None] + trace[1]
    x, y = (m * (1 - t / 2)[:, None] for m, t in zip(mean, trace, strict=True))
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


def test_the_length_of_the_mean_is_that_of_draws_on_the_sphere():
    raw = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    law = ProjectedNormal(raw, DiagonalCovariance(torch.full_like(raw, 0.04)))
    m, s = moments(law.mean, law.total_variance, spherical=True)
    drawn = law.sample(40_000, torch.Generator().manual_seed(0)).mean(0)
    torch.testing.assert_close(m, drawn, atol=3e-3, rtol=0)
    torch.testing.assert_close(s.square(), 1 - m.square().sum(1))
