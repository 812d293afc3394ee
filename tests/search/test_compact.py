"""An index that keeps nothing of head inputs: round, independent errors, and half the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laplace_metric.distributions import DiagonalCovariance
from laplace_metric.errors import UnknownNameError
from laplace_metric.laplace.distance._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace.distance._squared_distance import squared_distance
from laplace_metric.search import Index
from laplace_metric.search._encoded import Encoded, joined
from laplace_metric.search._pair_distances import RoundErrors

Q, N, Z = 4, 6, 5


def encoded(n: int, seed: int, spherical: bool) -> Encoded:
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, Z, generator=g, dtype=torch.float64)
    mean = torch.nn.functional.normalize(mean) if spherical else mean
    trace = torch.rand(n, generator=g, dtype=torch.float64)
    return Encoded(mean, trace, trace, mean[:, :0])


@pytest.mark.parametrize("pair_bytes", [1, 2**24])
def test_raw_moments_are_those_of_independent_round_gaussians(pair_bytes, monkeypatch):
    monkeypatch.setattr("laplace_metric._utils.blocks.BLOCK_BYTES", pair_bytes)
    queries, items = encoded(Q, 0, False), encoded(N, 1, False)
    positions = torch.tensor([[0, 5, -1], [1, 1, 2], [3, 0, 4], [5, -1, -1]])
    ours = RoundErrors(spherical=False)(queries, items, positions)
    for i, row in enumerate(positions.tolist()):
        for j, item in enumerate(row):
            if item < 0:
                assert ours.mean[i, j] == ours.variance[i, j] == torch.inf
                continue
            x, y = queries.take([i]), items.take([item])
            of = [DiagonalCovariance((side.trace / Z)[:, None].expand(1, Z)) for side in (x, y)]
            exact = squared_distance(EmbeddingPairs(x.mean, y.mean, *of, None), spherical=False)
            torch.testing.assert_close(ours.mean[i, j], exact.mean[0])
            torch.testing.assert_close(ours.variance[i, j], exact.variance[0])


def test_on_the_sphere_the_mean_is_the_expected_distance():
    queries, items = encoded(Q, 0, True), encoded(N, 1, True)
    positions = torch.arange(N).expand(Q, N)
    shorter = [(1 - side.trace / 2)[:, None] * side.mean for side in (queries, items)]
    ours = RoundErrors(spherical=True)(queries, items, positions)
    torch.testing.assert_close(ours.mean, 2 - 2 * shorter[0] @ shorter[1].mT)
    assert bool((ours.variance > 0).all())


@pytest.mark.parametrize("rank_by", ["mean", "expected"])
def test_answers_are_those_of_the_whole_index(points, embedder, rank_by, tmp_path):
    x, y = points
    how = {"rank_by": rank_by, "progress": False}
    whole, compact = (embedder.index(x[:150], y[:150], compact=c, **how) for c in (False, True))
    assert compact.items.encoded.basis_inputs.shape == (150, 0)
    for index in (whole, compact):
        index.calibrate(x[150:230], y[150:230], portable=True)
    a, b = (index.search(x[230:], k=5) for index in (whole, compact))
    assert np.array_equal(a.ids, b.ids)
    assert torch.equal(a.distance, b.distance)
    torch.testing.assert_close(a.match_probability, b.match_probability)
    assert not torch.equal(a.distance_sd, b.distance_sd)
    compact.save(tmp_path / "compact")
    for mmap in (False, True):
        again = Index.load(tmp_path / "compact", embedder, mmap=mmap)
        assert torch.equal(again.search(x[230:], k=5).distance_sd, b.distance_sd)
    again = Index.load(tmp_path / "compact", embedder)
    again.add(x[230:232], y[230:232], progress=False)
    assert again.items.encoded.basis_inputs.shape == (152, 0)


@pytest.mark.parametrize("large_bytes", [0, 3 * 8 * Z, 2**26])
def test_batches_of_any_size_are_joined_in_order(large_bytes, monkeypatch):
    monkeypatch.setattr("laplace_metric.search._encoded.LARGE_BYTES", large_bytes)
    batches = [encoded(n, n, False) for n in (1, 5, 2, 0, 7, 1)]
    expected, whole = Encoded.concatenate(batches), joined(batches)
    assert whole.earlier is expected.earlier is None
    columns = [name for name in vars(whole) if name != "earlier"]
    for ours, theirs in ((getattr(whole, name), getattr(expected, name)) for name in columns):
        assert torch.equal(ours, theirs)
    assert joined([batches[3]]) is None


def test_it_knows_no_shared_weights(points, embedder):
    with pytest.raises(UnknownNameError, match="'shared'.*not exist|rank_by"):
        embedder.index(points[0], points[1], compact=True, rank_by="shared", progress=False)
