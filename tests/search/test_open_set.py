"""Open-set queries made of known ones: they find all items but their own matches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch.nn.functional import normalize

from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.calibration.labels._votes import LabelVotes
from laplace_metric.errors import InputError
from laplace_metric.search import IVF
from laplace_metric.search.engines._engine import FlatEngine
from laplace_metric.search.rank._neighbours import without_some

DEPTH, CLASSES = 25, 12
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def of_ten(points, embedder):
    """An index of ten of twelve classes, and queries of all."""
    x, y = points
    kept = y[200:400] < 10
    index = embedder.index(x[200:400][kept], y[200:400][kept], progress=False)
    return index, x[400:], y[400:]


def test_they_are_as_many_as_are_missing(of_ten):
    index, x, y = of_ten
    plain = index.labelled_hits(x, y, DEPTH)
    open_set = int((~plain.known).sum())
    assert 0 < open_set < 0.3 * len(y)
    found = index.labelled_hits(x, y, DEPTH, open_set_fraction=0.4, seed=1)
    assert int((~found.known).sum()) == round(0.4 * len(y))
    turned = plain.known & ~found.known
    assert np.array_equal(found.match[~turned], plain.match[~turned])
    assert np.array_equal(found.hits.positions[~turned], plain.hits.positions[~turned])
    assert not bool(found.match[turned].any())
    assert bool((found.codes[turned] == -1).all())
    assert np.array_equal(found.simulated, turned)
    less = index.labelled_hits(x, y, DEPTH, open_set_fraction=open_set / len(y) / 2)
    assert np.array_equal(less.known, plain.known)
    assert plain.simulated is None
    assert not less.simulated.any()
    again = index.labelled_hits(x, y, DEPTH, open_set_fraction=0.4, seed=1)
    assert np.array_equal(again.known, found.known)
    other = index.labelled_hits(x, y, DEPTH, open_set_fraction=0.4, seed=2)
    assert not np.array_equal(other.known, found.known)


@pytest.mark.parametrize("rank_by", ["mean", "expected", "shared"])
def test_they_find_what_an_index_without_their_class_finds(rank_by, points, embedder):
    """Brute force: an index of the other classes for each of them."""
    x, y = points
    items, of_items = x[200:400], y[200:400]
    index = embedder.index(items, of_items, progress=False, rank_by=rank_by)
    queries, labels = x[400:520], y[400:520]
    found = index.labelled_hits(queries, labels, DEPTH, open_set_fraction=0.5)
    turned = np.flatnonzero(~found.known).tolist()
    assert len(turned) == 60
    for c in range(CLASSES):
        rows = [i for i in turned if int(labels[i]) == c]
        there = (of_items != c).nonzero().flatten().numpy()
        without = embedder.index(items[there], of_items[there], progress=False, rank_by=rank_by)
        wanted = without.search(queries[rows], k=DEPTH).hits
        ours = found.hits.take(np.array(rows, dtype=np.int64))
        assert np.array_equal(ours.positions, there[wanted.positions])
        for array, theirs in (
            (ours.distance, wanted.distance),
            (ours.distance_sd, wanted.distance_sd),
            (ours.votes.ambiguity, wanted.votes.ambiguity),
            (ours.uncertainty, wanted.uncertainty),
        ):
            np.testing.assert_allclose(array, theirs, rtol=1e-5, atol=1e-6)


def test_named_matches_are_hidden_as_labels_are(points, embedder):
    x, y = points
    index = embedder.index(x[200:400], ids=list(range(200)), progress=False)
    matches = [(y[200:400] == c).nonzero().flatten().tolist() for c in y[400:500].tolist()]
    found = index.labelled_hits(x[400:500], k=DEPTH, matches=matches, open_set_fraction=0.3)
    turned = np.flatnonzero(~found.known).tolist()
    assert len(turned) == 30
    assert found.codes is None
    for i in turned:
        assert not set(found.hits.positions[i].tolist()) & set(matches[i])
        assert int((found.hits.positions[i] >= 0).sum()) == DEPTH


def test_a_calibration_with_them_answers_fewer_open_set_queries(of_ten, points):
    index, x, y = of_ten
    asked, truth = x[120:], y[120:]
    let_in = []
    for share in (0.0, 0.3):
        some = y[:120] < 10  # no open-set queries are at hand
        calibration = index.calibrate(x[:120][some], y[:120][some], open_set_fraction=share, seed=0)
        found = index.search(asked, k=1)
        open_set = truth >= 10
        let_in.append(float(found.match_probability[open_set, 0].mean()))
        assert float(calibration.known.mean()) == pytest.approx(1 - share, abs=0.1)
    assert let_in[1] < 0.8 * let_in[0]


def test_an_engine_that_finds_fewer(points):
    """Places that an approximate engine leaves open are not filled by items passed over."""

    class Few(FlatEngine):
        def search(self, queries, k):
            rows = super().search(queries, k)
            rows[:, 3:] = -1
            return rows

    from laplace_metric.search import Flat

    vectors = torch.arange(8.0)[:, None]
    search = without_some(Few(vectors, Flat(faiss=False)), lambda rows, part: rows == 1, 1)
    rows = search(torch.tensor([[0.0], [7.0]]), 4)
    assert rows.tolist() == [[0, 2, -1, -1], [7, 6, 5, -1]]


def test_blocks_of_queries(of_ten, monkeypatch):
    from laplace_metric.search.rank import _neighbours

    index, x, y = of_ten
    whole = index.labelled_hits(x, y, DEPTH, open_set_fraction=0.5)
    monkeypatch.setattr(_neighbours, "CANDIDATE_BYTES", 1_600)
    parts = index.labelled_hits(x, y, DEPTH, open_set_fraction=0.5)
    assert np.array_equal(parts.hits.positions, whole.hits.positions)
    assert isinstance(whole.hits.votes, LabelVotes)


def test_lists_of_an_inverted_file(points, embedder):
    pytest.importorskip("faiss")
    x, y = points
    index = embedder.index(x[:300], y[:300], progress=False, engine=IVF(lists=4, probes=1))
    flat = embedder.index(x[:300], y[:300], progress=False)
    found, wanted = (
        i.labelled_hits(x[300:], y[300:], 10, open_set_fraction=0.3) for i in (index, flat)
    )
    turned = ~wanted.known
    assert np.array_equal(found.known, wanted.known)
    assert np.array_equal(found.hits.positions[turned], wanted.hits.positions[turned])
    assert not np.array_equal(found.hits.positions[~turned], wanted.hits.positions[~turned])


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "many"])
def test_a_share_is_a_share(share, of_ten):
    index, x, y = of_ten
    with pytest.raises(InputError, match="open_set_fraction"):
        index.calibrate(x, y, open_set_fraction=share)


def test_a_share_that_leaves_no_match_is_named(of_ten):
    index, x, y = of_ten
    for share in (0.99, 0.9999):
        with pytest.raises(InputError, match="a match in the index.*smaller open_set_fraction"):
            index.calibrate(x, y, open_set_fraction=share)


def test_where_fewer_items_are_left_places_stay_open(points, embedder):
    x, y = points
    rows = torch.cat([(y == 0).nonzero()[:20, 0], (y == 1).nonzero()[:4, 0]])
    index = embedder.index(x[rows], y[rows], progress=False)
    queries = (y == 0).nonzero()[20:30, 0]
    found = index.labelled_hits(x[queries], y[queries], 10, open_set_fraction=0.5)
    open_set = np.flatnonzero(~np.asarray(found.known))
    assert len(open_set)
    assert (np.asarray(found.hits.positions)[open_set, 4:] == -1).all()
    assert np.isinf(np.asarray(found.hits.distance)[open_set, 4:]).all()
    assert (np.asarray(found.hits.positions)[open_set, :4] >= 20).all()


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.UnfamiliarQueriesWarning")
def test_what_the_page_says_of_twenty_splits():
    """Right answers with no, simulated and real open-set queries; 8 and 9 are near the others."""
    digits, new = datasets.load("digits"), datasets.load("digits", "test")
    x, y = digits.pixels().flatten(1)[digits.labels < 8], digits.labels[digits.labels < 8]
    index = LaplaceEmbedder.from_embeddings(x, y, distance="arccos").index(x, y)
    queries, labels = new.pixels().flatten(1), new.labels
    right: dict[str, list[list[bool]]] = {"none": [], "simulated": [], "real": []}
    for seed in range(20):
        order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
        held, later = order[:250], order[250:500]
        known = held[labels[held] < 8]
        for name, rows, share in (("none", known, 0), ("simulated", known, 0.2), ("real", held, 0)):
            index.calibrate(queries[rows], labels[rows], open_set_fraction=share)
            answers = index.guarantee(precision=0.9)(index.search(queries[later], k=1))
            told, truth = answers.label[answers.answered], labels[later].numpy()[answers.answered]
            right[name].append([a == b for a, b in zip(told, truth, strict=True)])
    none, simulated, real = (
        f"{100 * np.mean(some):.1f} %"
        for some in ([np.mean(one) for one in each] for each in right.values())
    )
    below = {name: sum(np.mean(one) < 0.9 for one in each) for name, each in right.items()}
    tests = [binomtest(sum(one), len(one), 0.9, alternative="less") for one in right["simulated"]]
    surely = sum(test.pvalue < 0.05 for test in tests)
    text = " ".join((DOCS / "match.md").read_text().split())
    assert (
        f"without open-set queries, {none} of the answers were right, in {below['none']} splits"
        in text
    )
    assert (
        f"With simulated ones it was {simulated}, in {below['simulated']} splits less than 90 % "
        f"(in {surely} significantly): 8 and 9" in text
    )
    assert (
        f"With real ones in the expected proportion it was {real}, in {below['real']} splits"
        in text
    )
    nearest = torch.cdist(normalize(queries, dim=1), normalize(x, dim=1))
    other = nearest.masked_fill(labels[:, None] == y, torch.inf).min(1).values
    assert other[labels >= 8].median() < min(other[labels == c].median() for c in range(8))
