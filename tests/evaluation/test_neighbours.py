"""Nearest neighbours against brute force in float64, with ties, duplicates and cancellation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric.evaluation import (
    _nearest_neighbours,
    _reranking,
    _shortlists,
    nearest_neighbours,
)


def nearest(points, *arguments, engine="torch", **how):
    """The neighbours, with shortlists from FAISS or from matrix products."""
    if engine == "faiss":
        pytest.importorskip("faiss", reason="faiss is an optional extra")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_nearest_neighbours, "faiss_fits", lambda _: engine == "faiss")
        return nearest_neighbours(points, *arguments, **how)


engines = pytest.mark.parametrize("engine", ["torch", "faiss"])


def brute_force(queries, gallery, k, exclude=None):
    """Python loops: sort by (distance, index)."""
    queries, gallery = np.asarray(queries, float), np.asarray(gallery, float)
    indices, distances = [], []
    for row, q in enumerate(queries):
        far = [float(np.sqrt(((q - g) ** 2).sum())) for g in gallery]
        order = list(np.lexsort((np.arange(len(far)), far)))
        if exclude is not None:
            order.remove(exclude[row])
        indices.append(order[:k])
        distances.append([far[i] for i in order[:k]])
    return np.array(indices), np.array(distances)


@engines
@pytest.mark.parametrize("copies", [3, 40, 200])
def test_self_is_left_out_by_identity_among_duplicates(engine, copies):
    """So many duplicates that the own index is not even among the first k + 16."""
    points = torch.tensor([[1.0, 2.0]]).expand(copies, 2).clone()
    result = nearest(points, k=2, engine=engine)
    rows = torch.arange(copies)[:, None]
    assert not (result.indices == rows).any()
    expected = [[i for i in range(4) if i != row][:2] for row in range(copies)]
    assert result.indices.tolist() == expected
    assert (result.distances == 0).all()


@engines
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_integer_grids_are_full_of_ties(engine, data):
    """Lower index first among ties, for every shape and k up to the gallery."""
    size, dim = data.draw(st.integers(2, 60)), data.draw(st.integers(1, 9))
    k = data.draw(st.integers(1, size - 1))
    seed = data.draw(st.integers(0, 10**6))
    points = torch.randint(0, 2, (size, dim), generator=torch.Generator().manual_seed(seed))
    indices, _ = brute_force(points, points, k, exclude=list(range(size)))
    result = nearest(points.float(), k=k, engine=engine)
    assert result.indices.tolist() == indices.tolist()


@engines
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("k", [2, 70])
def test_cancellation_spoils_neither_distances_nor_order(engine, offset, k):
    """Two tight, distant clouds: a float32 matrix product alone gets every distance wrong."""
    draw = torch.Generator().manual_seed(3)
    points = torch.randn(120, 16, generator=draw) * 1e-3 + 50 * torch.arange(120)[:, None].fmod(2)
    points = points + offset
    points[7] = points[9]
    indices, distances = brute_force(points, points, k, exclude=list(range(120)))
    result = nearest(points, k=k, engine=engine)
    assert result.indices.tolist() == indices.tolist()
    np.testing.assert_allclose(result.distances, distances, rtol=1e-5)
    assert result.distances[7, 0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_neighbours(dtype):
    """The reranker for large k, with a pair of duplicates that its gaps cannot separate."""
    draw = torch.Generator().manual_seed(5)
    points = torch.randn(300, 8, generator=draw, dtype=dtype)
    points[100] = points[200]
    indices, distances = brute_force(points, points, 150, exclude=list(range(300)))
    result = nearest(points, k=150)
    assert result.indices.tolist() == indices.tolist()
    np.testing.assert_allclose(result.distances, distances, rtol=1e-6)


@engines
def test_one_distance_overflows_float32(engine):
    """FAISS answers -1 for what it cannot measure: never taken for an index."""
    gallery = torch.tensor([[-1e19], [1e19]])
    result = nearest(torch.tensor([[-0.9e19]]), gallery, 2, engine=engine)
    assert result.indices.tolist() == [[0, 1]]


def test_many_neighbours_keep_small_distances():
    """A pair so near that a float64 matrix product loses half of its digits."""
    points = torch.randn(90, 8, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    points[3] = points[4] + 1e-6
    _, distances = brute_force(points, points, 70, exclude=list(range(90)))
    np.testing.assert_allclose(nearest_neighbours(points, k=70).distances, distances, rtol=1e-9)


@pytest.mark.parametrize("flipped", [False, True])
def test_many_neighbours_that_end_in_a_tie(flipped):
    """The last neighbour and the first that is left out are equally far."""
    gallery = torch.cat([torch.arange(1.0, 71.0), -torch.arange(70.0, 90.0)])[:, None]
    gallery = gallery.flip(0) if flipped else gallery
    indices, _ = brute_force(torch.zeros(1, 1), gallery, 70)
    assert nearest_neighbours(torch.zeros(1, 1), gallery, 70).indices.tolist() == indices.tolist()


def test_blocks_agree(monkeypatch):
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    at_once = nearest(points, k=4)
    monkeypatch.setattr(_reranking, "row_block", lambda *_, **__: 7)
    blocks = nearest(points, k=4)
    assert torch.equal(at_once.indices, blocks.indices)
    assert torch.equal(at_once.distances, blocks.distances)


def test_types_follow_the_input():
    points = np.random.default_rng(0).normal(size=(12, 3))
    assert nearest_neighbours(points).distances.dtype == torch.float64
    assert nearest_neighbours(points.astype(np.float32)).distances.dtype == torch.float32
    half = nearest(torch.as_tensor(points).bfloat16())
    assert half.distances.dtype == torch.float32
    trained = torch.as_tensor(points).requires_grad_()
    assert not nearest_neighbours(trained).distances.requires_grad


def test_without_faiss(monkeypatch):
    monkeypatch.setattr(_shortlists.importlib.util, "find_spec", lambda name: None)
    assert nearest_neighbours(torch.randn(4, 2)).indices.shape == (4, 1)
