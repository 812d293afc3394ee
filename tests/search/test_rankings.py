"""Evidence and answers are right whatever ranks the neighbours: the nearest need not be first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.datasets import load
from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes
from laplace_metric.errors import WideDrawsWarning
from laplace_metric.search import HNSW, Index
from laplace_metric.search._expected_vectors import ranks_by_uncertainty

RANKINGS = ("mean", "predictive", "expected", "shared")
N = 300


def uneven(seed: int = 0, distance: str = "euclidean") -> tuple[LaplaceEmbedder, Tensor, Tensor]:
    """A posterior that is unsure in half of the inputs, by which some items hardly differ."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % 6
    x = torch.randn(6, 8, generator=g)[y] + 0.6 * torch.randn(N, 8, generator=g)
    x[:, 4:] *= 6 * torch.rand(N, 1, generator=g)
    torch.manual_seed(seed)
    model = nn.Linear(8, 4)
    with torch.no_grad():
        model.weight[:, 4:] *= 0.02
    how = {
        "distance": distance,
        "prior_precision": 0.05,
        "hessian": "positives",
        "temperature": 1.0,
    }
    return LaplaceEmbedder(model, **how).fit(x[:60], y[:60], progress=False), x, y


def brute_votes(distance: np.ndarray, labels: np.ndarray) -> tuple[list, list]:
    """``weighted`` and ``ambiguity`` of one query, by loops over its voters."""
    d = [float(value) for value in distance[:VOTES] if np.isfinite(value)]
    a, b = min(d), max(d)
    w = [np.exp(-(x * x - a * a) / (b * b - a * a)) if b > a else 1.0 for x in d]
    p = {c: sum(v for v, own in zip(w, labels, strict=False) if own == c) / sum(w) for c in labels}
    used = {c: p[c] for c in labels[: len(d)]}
    return [p[c] for c in labels], -sum(v * np.log(v) for v in used.values())


def assert_right(index: Index, queries: Tensor, k: int) -> None:
    """Votes are those of a loop; what is calibrated from them is finite."""
    result = index.search(queries, k=k)
    votes = result.hits.votes
    deep = index.search(queries, k=min(VOTES, len(index)))
    for row in range(len(queries)):
        labels = deep.hits.votes.labels[row].tolist()
        weighted, ambiguity = brute_votes(deep.distance[row].double().numpy(), labels)
        np.testing.assert_allclose(votes.weighted[row], weighted[:k], rtol=1e-9)
        np.testing.assert_allclose(votes.ambiguity[row], ambiguity, atol=1e-9)
    if index.calibration is not None:
        for name in ("match_probability", "label_probability", "p_value"):
            value = getattr(result, name)
            assert bool(((value >= 0) & (value <= 1)).all()), name
        assert bool((result.label_probability > 0).all())
        assert bool((result.match_probability[result.positions >= 0] > 0).all())


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("rank_by", RANKINGS)
def test_votes_are_those_of_a_loop_under_every_ranking(rank_by, distance, tmp_path):
    embedder, x, y = uneven(0, distance)
    index = embedder.index(x[60:120], y[60:120], rank_by=rank_by, progress=False)
    if rank_by in ("expected", "shared"):  # or the test could not fail
        near = index.search(x[180:], k=20).distance
        assert float((near.argmin(1) > 0).double().mean()) > 0.3
    index.calibrate(x[120:240], y[120:240])
    assert_right(index, x[240:260], 5)
    found = index.ask(x[240:], probability=0.5)
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index", embedder)
    assert np.array_equal(again.ask(x[240:], probability=0.5).label, found.label)
    assert_right(again, x[240:260], 5)
    right = found.label == y[240:].numpy()
    assert right[found.answered].mean() > 0.5


@pytest.mark.parametrize("rank_by", RANKINGS)
def test_graphs_and_cross_fitted_indices_rank_as_well(rank_by):
    embedder, x, y = uneven(1)
    approximate = embedder.index(x[:120], y[:120], engine=HNSW(), rank_by=rank_by, progress=False)
    approximate.calibrate(x[120:240], y[120:240])
    assert_right(approximate, x[240:260], 5)
    embedder = LaplaceEmbedder(embedder.model, hessian="positives", prior_precision=0.05)
    crossed = embedder.cross_index(x[:200], y[:200], rank_by=rank_by, progress=False)
    assert_right(crossed, x[240:260], 5)


@pytest.mark.parametrize("rank_by", RANKINGS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_few_items_and_few_neighbours(rank_by, k):
    embedder, x, y = uneven(2)
    for n in (k, 4, 7):
        if n >= k:
            index = embedder.index(x[60 : 60 + n], y[60 : 60 + n], rank_by=rank_by, progress=False)
            assert_right(index, x[180:200], k)


@pytest.mark.parametrize("rank_by", RANKINGS)
def test_items_of_one_class_and_equal_items(rank_by):
    embedder, x, y = uneven(3)
    one = embedder.index(x[60:80], y[60:80] * 0, rank_by=rank_by, progress=False)
    found = one.search(x[180:200], k=20).hits.votes
    np.testing.assert_allclose(found.weighted, 1.0)
    np.testing.assert_array_equal(found.ambiguity, 0.0)
    equal = embedder.index(x[60:61].repeat(9, 1), y[:9] % 3, rank_by=rank_by, progress=False)
    votes = equal.search(torch.cat([x[180:184], x[60:61]]), k=9).hits.votes
    np.testing.assert_allclose(votes.weighted[:4], 1 / 3, rtol=0.02)
    np.testing.assert_allclose(votes.ambiguity[:4], np.log(3), rtol=1e-3)
    # the last query is a copy of all items: its distances are rounding alone, of each machine
    assert votes.weighted[4].min() > 0.1
    itself = equal.search(x[60:61], k=9)
    assert bool(itself.distance_sd.isfinite().all())


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e12])
@pytest.mark.parametrize("rank_by", RANKINGS)
def test_the_unit_of_the_vectors_does_not_matter(rank_by, scale):
    _, x, y = uneven(4)
    x = x[:, :4].double() * scale
    fitted = LaplaceEmbedder.from_embeddings(x[:60], y[:60], prior_precision=1.0)
    index = fitted.index(x[60:120], y[60:120], rank_by=rank_by, progress=False)
    index.calibrate(x[120:240], y[120:240])
    assert_right(index, x[240:260], 5)


def test_a_search_of_ones_own_may_return_any_order():
    embedder, x, y = uneven(5)
    index = embedder.index(x[60:160], y[60:160], rank_by="mean", progress=False)

    def shuffled(queries: np.ndarray, k: int) -> list:
        rows = index.engine.search(torch.from_numpy(queries), k).numpy()
        order = np.random.default_rng(0).permuted(np.arange(k))
        return rows[:, order]

    own = index.searched_by(shuffled)
    own.calibrate(x[160:240], y[160:240])
    index.calibrate(x[160:240], y[160:240])
    assert_right(own, x[240:260], 5)
    mine, theirs = (i.search(x[240:], k=20).hits.votes.ambiguity for i in (index, own))
    np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_the_first_neighbour_may_be_the_farthest():
    votes = LabelVotes.of(np.array([[1.0, 0.2, 0.3, 1.0001]]), np.array([[0, 1, 1, 0]]))
    weighted, ambiguity = brute_votes(np.array([1.0, 0.2, 0.3, 1.0001]), np.array([0, 1, 1, 0]))
    np.testing.assert_allclose(votes.weighted[0], weighted)
    np.testing.assert_allclose(votes.ambiguity[0], ambiguity)
    assert votes.weighted[0, 1] > votes.weighted[0, 0]


def right_of_fashion(folder: Path, **settings: float) -> dict[str, float]:
    """Share of nearest items of the same class: 2,000 images each for posterior, items, queries."""
    found = load("fashion-mnist", "train", folder, limit=6000)
    x, y = nn.functional.avg_pool2d(found.images / 255, 2).flatten(1), found.labels
    embedder = LaplaceEmbedder.from_embeddings(x[:2000], y[:2000], distance="arccos", **settings)
    shares = {}
    for ranking in ("mean", "expected"):
        index = embedder.index(x[2000:4000], rank_by=ranking)
        nearest = index.search(x[4000:], 1).ids[:, 0]
        shares[ranking] = float((y[2000:4000][nearest] == y[4000:]).double().mean())
    return shares


def test_expected_distances_of_a_posterior_find_what_is_certain(real_data):
    """The numbers of the docstrings of ``rank_by``."""
    tuned = right_of_fashion(real_data)
    with pytest.warns(WideDrawsWarning, match="by their uncertainty"):
        wide = right_of_fashion(real_data, temperature=1.0)
    told = " ".join((LaplaceEmbedder.index.__doc__ or "").split())
    mean, expected = tuned["mean"], tuned["expected"]
    assert f'{mean:.2f} by "mean", {expected:.2f} by "expected", {wide["expected"]:.2f} at' in told
    told = " ".join((Index.build.__doc__ or "").split())
    span = f"{wide['expected']:.2f} to {expected:.2f}"
    assert f'right for {span} of queries, "mean" for {mean:.2f}' in told


def test_a_narrow_posterior_ranks_by_means_and_does_not_warn(recwarn):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    x = 3 * torch.randn(4, 6, generator=g)[y] + torch.randn(200, 6, generator=g)
    LaplaceEmbedder.from_embeddings(x, y, temperature=1e-4).index(x, y, rank_by="expected")
    assert not [w for w in recwarn if issubclass(w.category, WideDrawsWarning)]
    with pytest.warns(WideDrawsWarning, match="rank_by='mean' or 'predictive'"):
        LaplaceEmbedder.from_embeddings(x, y, temperature=1e4, distance="euclidean").index(
            x, y, rank_by="expected"
        )


@pytest.mark.parametrize("spherical", [False, True])
def test_a_ranking_by_uncertainty_is_one_that_follows_it_more_than_the_means(spherical):
    g = torch.Generator().manual_seed(0)
    about = torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0])  # a cone, in which no cosine is negative
    u = nn.functional.normalize(about + torch.randn(700, 5, generator=g), dim=1)
    trace = torch.rand(700, generator=g)
    assert not ranks_by_uncertainty(u, 0.01 * trace, spherical=spherical)
    assert ranks_by_uncertainty(u, (2 if spherical else 99) * trace, spherical=spherical)
    assert not ranks_by_uncertainty(u, torch.full((700,), 0.5), spherical=spherical)
    assert not ranks_by_uncertainty(u[:1], trace[:1], spherical=spherical)
