"""The variance of a cosine by draws, the root, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import cosine_discount
from laplace_metric import LaplaceEmbedder
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError

F64 = torch.float64


def embeddings(n, size, seed, spread=0.3):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, size, generator=g, dtype=F64)
    return Embedding(Gaussian(mean, spread * torch.rand(n, size, generator=g, dtype=F64)))


def looped(query, gallery, beta):
    rows = []
    for q, s in zip(query.mean, query.variance, strict=True):
        row = []
        for g, t in zip(gallery.mean, gallery.variance, strict=True):
            u, v = q / q.norm(), g / g.norm()
            a, b = s / q.norm() ** 2, t / g.norm() ** 2
            variance = (u**2 * b + v**2 * a + a * b).sum()
            row.append(u @ v / (1 + math.pi * beta * variance / 8).sqrt())
        rows.append(torch.stack(row))
    return torch.stack(rows)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.floats(0, 1e4))
def test_pair_by_pair(n, m, size, beta):
    query, gallery = embeddings(n, size, 0), embeddings(m, size, 1)
    found = cosine_discount(query, gallery, beta=beta)
    torch.testing.assert_close(found, looped(query, gallery, beta))


def test_the_variance_is_that_of_independent_draws():
    query, gallery = embeddings(1, 5, 0), embeddings(1, 5, 1)
    g = torch.Generator().manual_seed(0)
    sides = []
    for e in (query, gallery):
        noise = torch.randn(400_000, 5, generator=g, dtype=F64)
        sides.append((e.mean + noise * e.variance.sqrt()) / e.mean.norm())
    drawn = float((sides[0] * sides[1]).sum(1).var())
    cosine, discounted = (float(cosine_discount(query, gallery, beta=b)) for b in (0.0, 1.0))
    assert ((cosine / discounted) ** 2 - 1) * 8 / math.pi == pytest.approx(drawn, rel=0.01)


def test_without_weight_it_is_the_cosine_and_the_length_does_not_count():
    query, gallery = embeddings(3, 4, 0), embeddings(5, 4, 1)
    cosine = torch.nn.functional.cosine_similarity(query.mean[:, None], gallery.mean[None], dim=-1)
    torch.testing.assert_close(cosine_discount(query, gallery, beta=0), cosine)
    longer = Embedding(Gaussian(3 * query.mean, 9 * query.variance))
    same = cosine_discount(longer, gallery, beta=7)
    torch.testing.assert_close(same, cosine_discount(query, gallery, beta=7))


def test_of_a_posterior():
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    e = embedder(x)
    found = cosine_discount(e, e[torch.arange(4)], beta=100.0)
    assert found.shape == (30, 4)
    assert bool((found.diagonal() < 1).all())


def test_what_it_refuses():
    query = embeddings(2, 3, 0)
    with pytest.raises(InputError, match="beta=-1"):
        cosine_discount(query, query, beta=-1)
    with pytest.raises(InputError, match="query.*size 3.*gallery 4"):
        cosine_discount(query, embeddings(2, 4, 0))
    nothing = Embedding(Gaussian(torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64)))
    with pytest.raises(InputError, match="gallery: .*mean of row 0"):
        cosine_discount(query, nothing)
