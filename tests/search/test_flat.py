"""The exact engine against brute force in float64: with FAISS, without, block by block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.evaluation import _shortlists, nearest_neighbours
from laplace_metric.search import Flat
from laplace_metric.search.engines._engine import FlatEngine

KINDS = {"faiss": Flat(faiss=True), "torch": Flat(faiss=False), "auto": Flat()}


def galleries() -> dict[str, tuple[Tensor, Tensor, int]]:
    """Queries, gallery and k of each case."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 7, generator=g)
    grid = torch.randint(0, 3, (200, 3), generator=g).float()
    return {
        "plain": (x[:20] + 0.1, x, 10),
        "the items themselves": (x[:20], x, 5),
        "everything": (x[:5], x[:40], 40),
        "far from zero": (x[:10] + 1000, x + 1000, 10),
        "duplicates": (x[:10], x[:30].repeat(5, 1), 12),
        "ties": (grid[:12], grid, 30),
        "huge": (x[:5] * 1e18, x * 1e18, 5),
        "overflowing squares": (x[:5] * 1e25, x * 1e25, 5),
        "tiny": (x[:5] * 1e-18, x * 1e-18, 5),
        "mixed norms": (x[:9], x * torch.logspace(-6, 6, 300)[:, None], 20),
        "one item": (x[:3], x[:1], 1),
    }


def brute(queries: Tensor, gallery: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Positions and distances by differences in float64; ties in order of position."""
    gaps = (queries.double()[:, None] - gallery.double()).square().sum(-1).sqrt()
    ordered, positions = gaps.sort(dim=1, stable=True)
    return positions[:, :k], ordered[:, :k]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", galleries())
def test_it_is_brute_force(case, kind):
    queries, gallery, k = galleries()[case]
    positions, distances = brute(queries, gallery, k)
    assert torch.equal(FlatEngine(gallery, KINDS[kind]).search(queries, k), positions)
    if case == "overflowing squares":  # not of float64
        return
    found = nearest_neighbours(queries, gallery, k)
    assert torch.equal(found.indices, positions)
    torch.testing.assert_close(found.distances.double(), distances, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("case", galleries())
def test_every_way_gives_the_same_numbers(case, monkeypatch):
    queries, gallery, k = galleries()[case]
    first = FlatEngine(gallery, Flat(faiss=True)).search(queries, k)
    monkeypatch.setattr(_shortlists, "GALLERY_BYTES", 200)
    for other in (FlatEngine(gallery, Flat(faiss=False)), FlatEngine(gallery, Flat(), mapped=True)):
        assert torch.equal(other.search(queries, k), first)


def test_float64_needs_no_faiss_and_float64_queries_may_ask_a_float32_index():
    queries, gallery, k = galleries()["plain"]
    double = FlatEngine(gallery.double(), Flat()).search(queries.double(), k)
    assert torch.equal(double, brute(queries, gallery, k)[0])
    fine = queries.double() + 1e-9
    for kind in KINDS.values():
        mixed = FlatEngine(gallery, kind).search(fine, k)
        assert torch.equal(mixed, brute(fine, gallery, k)[0])


def test_what_faiss_cannot_hold_is_refused_by_the_name_that_was_given(points, monkeypatch):
    x, y = points
    double = LaplaceEmbedder(torch.nn.Linear(6, 3).double()).fit([(x.double(), y)], progress=False)
    with pytest.raises(InputError, match=r"Flat\(faiss=True\).*float32.*torch.float64"):
        double.index(x.double(), engine=Flat(faiss=True), progress=False)
    assert len(double.index(x.double(), progress=False).search(x[:2].double(), k=3)) == 2
    hide(monkeypatch)
    with pytest.raises(MissingPackageError, match="pip install faiss-cpu"):
        FlatEngine(x, Flat(faiss=True))
    assert FlatEngine(x, Flat()).search(x[:1], 1).tolist() == [[0]]


def hide(monkeypatch) -> None:
    """No FAISS is found."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_what_only_differences_settle_is_settled_a_few_queries_at_a_time(monkeypatch):
    """More copies than a shortlist holds; positions in the order of the items."""
    g = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 4, generator=g).repeat_interleave(60, 0)
    queries = torch.randn(7, 4, generator=g)
    monkeypatch.setattr("laplace_metric.evaluation._reranking.WIDEST_BYTES", 2 * 8 * len(vectors))
    result = FlatEngine(vectors, Flat()).search(queries, 5)
    exact = torch.cdist(queries.double(), vectors.double())
    nearest = exact.argmin(1) // 60 * 60
    assert torch.equal(result, nearest[:, None] + torch.arange(5))
