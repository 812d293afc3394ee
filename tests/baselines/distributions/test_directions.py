from __future__ import annotations

import torch

from baselines.distributions import Directions
from laplace_metric.embedding import Embedding


def directions(b: int, dimension: int) -> Directions:
    g = torch.Generator().manual_seed(0)
    loc = torch.nn.functional.normalize(torch.randn(b, dimension, generator=g).double(), dim=-1)
    return Directions(loc, 20 * torch.rand(b, generator=g).double())


def test_variance_is_the_mean_squared_deviation_from_the_mean():
    d = directions(4, 5)
    z = d.sample(100_000, torch.Generator().manual_seed(1))
    assert z.shape == (100_000, 4, 5)
    torch.testing.assert_close((z - d.mean).square().mean(0), d.variance, rtol=0.03, atol=1e-3)
    chord = 2 * (1 - d.distribution.resultant)
    torch.testing.assert_close(d.variance.sum(-1), chord)


def test_select_and_concatenate_through_an_embedding():
    batch = Embedding(directions(5, 3), torch.arange(5.0))
    joined = Embedding.concatenate([batch[:2], batch[torch.tensor([2, 3, 4])]])
    assert torch.equal(joined.mean, batch.mean)
    assert torch.equal(joined.variance, batch.variance)
    assert torch.equal(joined.distribution.concentration, batch.distribution.concentration)
