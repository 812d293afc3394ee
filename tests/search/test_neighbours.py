"""Pairs of head inputs against ``LaplaceEmbedder.distance`` row by row, and joint draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.laplace import Distance
from laplace_metric.search import _pair_distances
from laplace_metric.search._encoder import Encoder
from laplace_metric.search.rank import _neighbours
from tests.search.second_order import second_order

Q, N, K = 7, 9, 4


def fitted(head: str, structure: str, distance: str) -> LaplaceEmbedder:
    """In float64, with a linear head (with or without bias) or two layers and what is between."""
    torch.manual_seed(0)
    heads = {
        "linear": nn.Linear(5, 3),
        "no bias": nn.Linear(5, 3, bias=False),
        "layered": nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
    }
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), heads[head]).double()
    x = torch.randn(60, 4, dtype=torch.float64)
    embedder = LaplaceEmbedder(
        model, head=model[2], structure=structure, distance=distance, hessian="positives"
    )
    return embedder.fit([(x, torch.arange(60) % 4)], progress=False)


def encoded(embedder: LaplaceEmbedder):
    """Pairs, a batch of inputs as a query and one as items, and both encoded."""
    encode = Encoder.of(embedder)
    g = torch.Generator().manual_seed(1)
    x, y = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (Q, N))
    return encode.pairs, x, y, encode(x), encode(y)


def some_positions() -> torch.Tensor:
    positions = torch.randint(0, N, (Q, K), generator=torch.Generator().manual_seed(2))
    positions[1, 2:], positions[4] = -1, -1
    return positions


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("head", ["linear", "no bias", "layered"])
def test_they_are_the_distances_of_the_embedder(head, structure, distance):
    embedder = fitted(head, structure, distance)
    pairs, x, y, queries, items = encoded(embedder)
    positions = some_positions()
    moments = pairs(queries, items, positions)
    exists = positions >= 0
    row, rank = exists.nonzero(as_tuple=True)
    one = second_order(embedder, x[row], y[positions[row, rank]])
    torch.testing.assert_close(moments.mean[exists], one.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.variance[exists], one.variance, rtol=1e-9, atol=1e-9)
    assert bool((moments.mean[~exists] == torch.inf).all())
    assert bool((moments.variance[~exists] == torch.inf).all())
    embedding = embedder(y)
    torch.testing.assert_close(items.mean, embedding.mean)
    torch.testing.assert_close(items.trace, embedding.uncertainty)


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_blocks_change_nothing(structure, monkeypatch):
    pairs, _, _, queries, items = encoded(fitted("linear", structure, "arccos"))
    at_once = pairs(queries, items, some_positions())
    monkeypatch.setattr(_pair_distances, "CACHE_BYTES", 1)
    parts = pairs(queries, items, some_positions())
    torch.testing.assert_close(parts.mean, at_once.mean)
    torch.testing.assert_close(parts.variance, at_once.variance)


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_spread_of_a_distance_is_that_of_joint_draws(distance):
    embedder = fitted("linear", "kron", distance)
    precision = 2e4 if distance == "arccos" else 2e3
    embedder._fitted = embedder.fitted_.with_precision(precision, 60.0)
    pairs, x, y, queries, items = encoded(embedder)
    positions = torch.arange(N).expand(Q, N)
    squared = pairs(queries, items, positions)
    gaps = torch.cdist(queries.mean, items.mean)
    deviation = _neighbours._deviation(squared, positions)
    draw = embedder.draw(20_000, torch.Generator().manual_seed(3))
    sampled = _joint(draw, x, y).norm(dim=-1).std(0)
    far = gaps > 6 * deviation
    assert int(far.sum()) > 20
    torch.testing.assert_close(deviation[far], sampled[far], rtol=0.06, atol=0)


def _joint(draw, x, y):
    """Differences [n, Q, N, Z] under weights that both share: one call, so one set of draws."""
    z = draw(torch.cat([x, y]))
    return z[:, : len(x), None] - z[:, None, len(x) :]


def test_no_neighbour_has_no_finite_spread_and_no_error_none():
    squared = Distance(torch.tensor([[0.0, torch.inf]]), torch.tensor([[0.0, torch.inf]]))
    deviation = _neighbours._deviation(squared, torch.tensor([[0, -1]]))
    assert deviation.tolist() == [[0.0, torch.inf]]


def test_a_deviation_is_0_where_the_distance_is_and_infinite_where_there_is_no_neighbour():
    """Rounding puts a squared distance of 0 a little below it, and leaves some variance."""
    squared = Distance(torch.tensor([[0.0, -1e-9, 4.0, 1.0]]), torch.tensor([[0, 1e-12, 4, 1]]))
    found = _neighbours._deviation(squared, torch.tensor([[0, 1, 2, -1]]))
    assert found.tolist() == [[0, 0, 0.5, torch.inf]]
