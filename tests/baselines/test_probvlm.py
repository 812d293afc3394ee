"""The generalised Gaussian by quadrature, and variances that a known spread should give."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import ProbVLM
from baselines.probvlm import generalised_gaussian_nll, generalised_gaussian_variance
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, NotFittedError
from tests.image_text.conftest import random_embedding

F64 = torch.float64


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 4.0), st.floats(-2.0, 1.0), st.floats(-3.0, 3.0))
def test_the_density_integrates_to_one_and_has_this_variance(beta, log_alpha, mu):
    # x = mu + sinh(u): fine near the pole of small beta, far into its tails
    u = torch.linspace(-12, 12, 400_001, dtype=F64)
    x, dx = mu + u.sinh() * math.exp(log_alpha), u.cosh() * math.exp(log_alpha)
    columns = [torch.full_like(u, value)[:, None] for value in (mu, log_alpha, beta)]
    p = (-generalised_gaussian_nll(x[:, None], *columns)).exp() * dx
    assert float(torch.trapezoid(p, u)) == pytest.approx(1, abs=1e-6)
    spread = float(torch.trapezoid(p * (x - mu).square(), u))
    variance = generalised_gaussian_variance(columns[1][:1], columns[2][:1])
    assert float(variance) == pytest.approx(spread, rel=1e-5)


def test_it_is_a_gaussian_and_a_laplace_density():
    g = torch.Generator().manual_seed(0)
    x, mu = torch.randn(2, 50, 3, generator=g, dtype=F64)
    scale = torch.rand(50, 3, generator=g, dtype=F64) + 0.1
    gaussian = torch.distributions.Normal(mu, scale / math.sqrt(2)).log_prob(x).sum(-1)
    laplace = torch.distributions.Laplace(mu, scale).log_prob(x).sum(-1)
    for beta, density in ((2.0, gaussian), (1.0, laplace)):
        nll = generalised_gaussian_nll(x, mu, scale.log(), torch.full_like(x, beta))
        torch.testing.assert_close(-nll, density)


def spread_problem(seed: int = 0):
    """Texts whose images lie close (even rows) or far (odd rows)."""
    g = torch.Generator().manual_seed(seed)
    text = torch.nn.functional.normalize(torch.randn(20, 6, generator=g), dim=1)
    text[:, 0] = torch.where(torch.arange(20) % 2 == 0, 1.0, -1.0)  # what tells them apart
    text = torch.nn.functional.normalize(text, dim=1)
    row = torch.arange(600) % 20
    noise = torch.where(row % 2 == 0, 0.05, 0.4)[:, None]
    image = text[row] + noise * torch.randn(600, 6, generator=g)
    zeros = (torch.zeros(600, 6), torch.zeros(20, 6))
    pairs = torch.stack([torch.arange(600), row], 1)
    return Embedding(Gaussian(image, zeros[0])), Embedding(Gaussian(text, zeros[1])), pairs


@pytest.mark.parametrize("residual", [False, True])
def test_a_text_whose_images_lie_far_apart_is_wide(residual):
    image, text, pairs = spread_problem()
    post = ProbVLM(32, residual=residual, own=0.1)
    post.fit(image, text, pairs, epochs=120, learning_rate=5e-3, seed=0)
    assert post.losses[-1] < post.losses[0]
    wide = post.embed_text(text)
    assert float(wide.uncertainty[1::2].min()) > float(wide.uncertainty[::2].max())
    if not residual:
        assert bool((wide.mean == text.mean).all())
        expected = torch.where(torch.arange(20) % 2 == 0, 0.05**2, 0.4**2)[:, None].expand(20, 6)
        ratio = wide.variance.mean(1) / expected[:, 0]
        assert bool(((ratio > 0.5) & (ratio < 2)).all())
    else:
        torch.testing.assert_close(wide.mean.norm(dim=1), torch.ones(20))


def test_what_is_refused():
    e = random_embedding(4, 3, 0)
    pairs = torch.zeros(2, 2).long()
    with pytest.raises(NotFittedError, match="call fit"):
        ProbVLM().embed_image(e)
    with pytest.raises(InputError, match="rows 0 to 4.*text.*has 4"):
        ProbVLM().fit(e, e, torch.tensor([[0, 0], [0, 4]]))
    with pytest.raises(InputError, match="pass whole numbers"):
        ProbVLM().fit(e, e, torch.zeros(3).long())
    with pytest.raises(InputError, match="hidden=0"):
        ProbVLM(0)
    with pytest.raises(InputError, match="epochs=0"):
        ProbVLM().fit(e, e, pairs, epochs=0)
    with pytest.raises(InputError, match="own=0"):
        ProbVLM(own=0)
    fitted = ProbVLM(4).fit(e, e, pairs, epochs=1, seed=0)
    with pytest.raises(InputError, match="size 5.*fit.*was 3"):
        fitted.embed_text(random_embedding(2, 5, 0))
