"""Label sets: levels against their definition, and whether the promise holds class by class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._calibration_file import calibration_of, calibration_part
from laplace_metric.calibration._conformal import conformal_quantile, fewest_queries
from laplace_metric.calibration.labels import _label_sets
from laplace_metric.calibration.labels._label_sets import HeldOutLabels, label_scores
from laplace_metric.errors import (
    FileFormatError,
    InputError,
    NotFittedError,
    UnreachableAlphaWarning,
)
from laplace_metric.search import Index

ALPHA = st.floats(0.01, 0.99)


def held_out(n: int, *arrays) -> HeldOutLabels:
    return HeldOutLabels(np.arange(n), *(np.asarray(array) for array in arrays))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 6), max_size=60),
    ALPHA,
    st.none() | st.floats(0.01, 0.99),
)
def test_a_quantile_is_the_largest_that_keeps_the_promise(values, alpha, confidence):
    """The rank by trying all of them: exact probabilities of what lies above the k-th smallest."""
    n = len(values)

    def kept(k: int) -> bool:  # k = 0: everything is in the set
        average = 1 - k / (n + 1) >= 1 - alpha - 1e-12
        if k == 0 or confidence is None:
            return average
        # the rest of the mass above the k-th smallest of n is Beta(n + 1 - k, k)
        return average and beta.cdf(1 - alpha, n + 1 - k, k) <= 1 - confidence + 1e-9

    rank = max(k for k in range(n + 1) if kept(k))
    wanted = -math.inf if rank == 0 else sorted(values)[rank - 1]
    assert conformal_quantile(np.array(values, dtype=float), alpha, confidence) == wanted


@given(st.floats(1e-300, 1 - 1e-9), st.sampled_from([1, 5]))
def test_the_fewest_are_those_that_reach_the_rank(alpha, rank):
    fewest = fewest_queries(alpha, rank)
    if fewest > 3000:
        return

    def reached(n: int) -> bool:
        return math.floor(alpha * (n + 1) * (1 + 1e-12)) >= rank

    assert reached(fewest)
    assert fewest == 1 or not reached(fewest - 1)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([-math.inf, -7.0, 0.1, 0.2, 0.4, 0.8, 0.9])),
        max_size=40,
    ),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-3.0, 0.3, 0.5])), max_size=40),
    st.sampled_from([0.3, 0.5, 0.7]),
)
def test_levels_by_their_definition(second, first, alpha):
    check_levels(second, first, alpha)


def test_levels_of_classes_at_the_edge_of_rare():
    """As many queries as it takes to be alone, and one fewer, which the above draws too rarely."""
    g = np.random.default_rng(0)
    for _ in range(300):
        first, second = (
            [(int(c), float(g.normal() + c)) for c in g.integers(0, 3, g.integers(8, 24))]
            for _ in range(2)
        )
        check_levels(second, first, alpha=float(g.choice([0.7, 0.8, 0.9])))


def check_levels(second, first, alpha):
    """The query is put among its own class, then everybody of its category is counted."""
    held = held_out(
        5,
        np.array([c for c, _ in first], dtype=np.int64),
        np.array([s for _, s in first], dtype=float),
        np.array([c for c, _ in second], dtype=np.int64),
        np.array([s for _, s in second], dtype=float),
    )
    levels, cluster = held.levels(alpha), clusters(first, alpha)
    count = [sum(c == d for c, _ in second) for d in range(5)]
    few = math.ceil(5 / alpha - 1)
    for c in range(5):
        with_query = [n + (c == d) for d, n in enumerate(count)]
        alone = with_query[c] > few
        same = {c} if alone else {
            d for d in range(5) if with_query[d] <= few and cluster[d] == cluster[c]
        }  # fmt: skip
        of_category = [s for d, s in second if d in same]
        wanted = conformal_quantile(np.array(of_category, dtype=float), alpha)
        assert float(levels.level[c]) == wanted
        assert bool(levels.alone[c]) == alone
    assert levels.queries.tolist() == count
    assert levels.other == levels.level[4], "a class of which nothing was held out"
    pooled = held.levels(alpha, by_class=False)
    assert set(pooled.level.tolist()) == {pooled.other}
    assert pooled.other == conformal_quantile(held.scores, alpha)


def clusters(first: list[tuple[int, float]], alpha: float) -> list[int]:
    """0 harder, 1 easier, by plain code."""
    scores, few = [s for _, s in first], math.ceil(5 / alpha - 1)
    ease, n = [], []
    for d in range(5):
        ranks = [
            (sum(t < s for t in scores) + sum(t <= s for t in scores)) / (2 * len(scores))
            for c, s in first
            if c == d
        ]
        ease.append((sum(ranks) + 0.5) / (len(ranks) + 1))
        n.append(len(ranks))
    of_rare = [ease[c] for c, _ in first if n[c] <= few]
    if len(of_rare) < 2 * few:
        return [0] * 5
    return [int(e > np.median(of_rare)) for e in ease]


def test_scores_of_labels_stand_at_their_nearest_item():
    g = np.random.default_rng(0)
    codes, posterior = g.integers(-1, 4, (50, 12)), g.random((50, 5))
    scores = label_scores(posterior, codes)
    for q in range(50):
        for j in range(12):
            first = codes[q, j] >= 0 and codes[q, j] not in codes[q, :j]
            wanted = float(posterior[q, j]) if j < 5 else -(j + 1)
            assert float(scores[q, j]) == (wanted if first else -math.inf)


DIFFICULTY = np.array([0.2, 0.6, 1.0, 1.6, 0.3, 0.8, 1.2, 2.0, 0.5, 1.4])
SHARE = np.array([30.0, 30, 30, 30, 1, 1, 1, 1, 1, 1])


def exchangeable(n: int, g: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Classes of two sizes, and the scores that their queries give to their own label."""
    codes = g.choice(len(SHARE), n, p=SHARE / SHARE.sum())
    return codes, -DIFFICULTY[codes] * np.abs(g.normal(size=n))


@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_every_class_is_covered_as_promised(alpha):
    """Over many held-out sets: a class alone within [1 - alpha, 1 - alpha + 1 / (n + 1)], the rare
    ones together at least 1 - alpha; pooled levels promise that of no class."""
    g = np.random.default_rng(0)
    few, runs = fewest_queries(alpha, 5), 300
    alone, upper = np.full((2, runs, 4), np.nan)
    rare, pooled = [], []
    test_codes, test_scores = exchangeable(40_000, g)
    for run in range(runs):
        held = held_out(10, *exchangeable(600, g), *exchangeable(600, g))
        levels = held.levels(alpha)
        held_in = test_scores >= levels.level[test_codes]
        by_class = np.bincount(test_codes, held_in, minlength=10)
        coverage = by_class / np.bincount(test_codes, minlength=10)
        assert bool(levels.alone[:4].all())
        assert not bool(levels.alone[4:].any())
        assert int(levels.queries[:4].min()) >= few
        alone[run], upper[run] = coverage[:4], 1 / (levels.queries[:4] + 1)
        rare.append(float(held_in[test_codes >= 4].mean()))
        once = test_scores >= held.levels(alpha, by_class=False).other
        pooled.append([float(once[test_codes == c].mean()) for c in (0, 3)])
    error = 3 * alone.std(0) / runs**0.5 + 3 * np.sqrt(alpha / np.bincount(test_codes)[:4])
    assert bool((alone.mean(0) >= 1 - alpha - error).all())
    assert bool((alone.mean(0) <= 1 - alpha + upper.mean(0) + error).all())
    spread = 3 * float(np.std(rare)) / runs**0.5 + 3 * (alpha / 6 / 200) ** 0.5
    assert np.mean(rare) >= 1 - alpha - spread
    easy, hard = np.mean(pooled, axis=0)
    assert easy > 1 - alpha / 10
    assert hard < 1 - 1.5 * alpha


def test_rare_classes_are_covered_on_average_and_the_choice_of_who_is_rare_costs_nothing():
    """Classes at the edge between rare and not: exact ranks, each with its own next query."""
    g, alpha, covered = np.random.default_rng(1), 0.2, []
    few = fewest_queries(alpha, 5)
    for _ in range(4000):
        codes = g.integers(0, 4, 4 * few + 1)
        scores = -DIFFICULTY[codes] * np.abs(g.normal(size=len(codes)))
        held = held_out(4, codes[:0], scores[:0], codes[:-1], scores[:-1])
        levels = held.levels(alpha)
        if not bool(levels.alone[codes[-1]]):
            covered.append(float(scores[-1] >= levels.level[codes[-1]]))
    assert len(covered) > 1000
    error = 3 * (alpha * (1 - alpha) / len(covered)) ** 0.5
    assert abs(np.mean(covered) - (1 - alpha)) < error + 1 / few


def test_with_confidence_a_class_is_covered_in_that_share_of_the_held_out_sets():
    g, alpha, kept, usual = np.random.default_rng(2), 0.1, [], []
    for _ in range(1500):
        scores = g.random(150)  # coverage of a level is 1 - level
        codes = np.zeros(150, dtype=np.int64)
        held = held_out(1, codes[:0], scores[:0], codes, scores)
        kept.append(float(held.levels(alpha, confidence=0.9).level[0]) <= alpha)
        usual.append(float(held.levels(alpha).level[0]) <= alpha)
    ranks = [k for k in range(1, 150) if binom.cdf(k - 1, 150, alpha) <= 0.1]
    exact = float(beta.sf(1 - alpha, 151 - ranks[-1], ranks[-1]))
    assert exact >= 0.9
    assert np.mean(kept) == pytest.approx(exact, abs=3 * (0.1 / 1500) ** 0.5)
    assert np.mean(usual) < 0.65


@pytest.fixture(scope="module")
def world():
    """Four easy classes and four that overlap in pairs; names as labels."""
    g = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(8, 6, generator=g)
    centres[4:6], centres[6:] = centres[4] + 0.8 * torch.randn(2, 6, generator=g), centres[6]
    y = torch.arange(2400) % 8
    x = centres[y] + 1.3 * torch.randn(2400, 6, generator=g)
    return x, np.array([f"class {c}" for c in y.tolist()])


@pytest.fixture(scope="module")
def embedder(world) -> LaplaceEmbedder:
    x, y = world
    return LaplaceEmbedder.from_embeddings(x[:400], np.unique(y[:400], return_inverse=True)[1])


@pytest.fixture
def index(world, embedder) -> Index:
    x, y = world
    made = embedder.index(x[:400], y[:400].tolist(), progress=False)
    made.calibrate(x[400:1400], y[400:1400].tolist())
    return made


def test_sets_of_an_index_are_what_scores_and_levels_say(index, world):
    x, y = world
    sets, calibration = index.label_sets(x[1400:1500]), index.calibration
    levels = calibration.labels.levels(0.1)
    assert bool(levels.alone.all())
    hits = index.labelled_hits(x[1400:1500], y[1400:1500].tolist(), calibration.depth).hits
    scores = calibration.label_scores(hits)
    for q in range(100):
        wanted = {
            f"class {int(c)}": float(s)
            for c, s in zip(hits.votes.labels[q], scores[q], strict=True)
            if s >= levels.level[c] and s > -math.inf
        }
        assert list(sets[q]) == sorted(wanted, key=wanted.get, reverse=True)
        assert bool(sets.holds(y[1400:1500].tolist())[q]) == (y[1400 + q] in wanted)
    assert sets.sizes.tolist() == [len(sets[q]) for q in range(len(sets))]
    assert not bool(sets.holds(["no such class"] * 100).any())


def test_held_out_labels_are_split_as_everything_else(index, world):
    x, y = world
    queries = index.labelled_hits(x[400:1400], y[400:1400].tolist(), 50)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).numpy()
    held = index.calibration.labels
    assert np.array_equal(held.clustering_codes, queries.codes[order[:500]])
    assert np.array_equal(held.codes, queries.codes[order[500:]])
    second = queries.take(order[500:])
    scores = index.calibration.label_scores(second.hits)
    own = second.hits.votes.labels == second.codes[:, None]
    assert np.array_equal(held.scores, np.where(own, scores, -math.inf).max(1))


def test_every_class_of_an_index_is_covered_and_pooled_sets_leave_some_out(index, world):
    """Mean over splits of the same 2,000 queries, about 62 a class to hold out."""
    x, y = world
    coverage = {True: [], False: []}
    for seed in range(6):
        order = 400 + torch.randperm(2000, generator=torch.Generator().manual_seed(seed)).numpy()
        ours, theirs = np.split(order, 2)
        index.calibrate(x[ours], y[ours].tolist(), seed=seed)
        labels = y[theirs]
        for by_class, rows in coverage.items():
            held = index.label_sets(x[theirs], by_class=by_class).holds(labels.tolist()).numpy()
            rows.append([held[labels == f"class {c}"].mean() for c in range(8)])
    means = {by_class: np.mean(rows, 0) for by_class, rows in coverage.items()}
    assert means[True].min() > 0.9 - 3 * 0.047 / 6**0.5
    assert means[True].max() < 0.9 + 3 * 0.047 / 6**0.5 + 1 / 50
    assert means[False].min() < 0.85
    assert means[False].max() > 0.95


def test_confidence_costs_size(index, world):
    usual, sure = (index.label_sets(world[0][1400:], confidence=c) for c in (None, 0.9))
    assert bool((sure.sizes >= usual.sizes).all())
    assert int(sure.sizes.sum()) > int(usual.sizes.sum())


def test_labels_that_came_later_have_the_level_of_rare_classes(index, world):
    x, _ = world
    index.add(x[:3] + 40, ["new"] * 3)
    sets = index.label_sets(x[:3] + 40.1)
    assert bool(sets.everywhere[list(sets.classes.values).index("new")]), "nothing is known of it"
    assert all("new" in sets[q] for q in range(3))
    assert int(sets.everywhere.sum()) == 1
    far = index.label_sets(x[400:420])
    assert all(list(far[q])[-1] == "new" for q in range(20)), "behind the labels of neighbours"
    assert far.sizes.tolist() == [len(far[q]) for q in range(20)]
    assert bool(far.holds(["new"] * 20).all())


def test_too_few_queries_for_any_level(world, embedder):
    x, y = world
    index = embedder.index(x[:400], y[:400].tolist(), progress=False)
    index.calibrate(x[400:424], y[400:424].tolist())
    with pytest.warns(
        UnreachableAlphaWarning, match=r"every set.* 12 held-out .* needs 19"
    ) as found:
        sets = index.label_sets(x[1400:1410], alpha=0.05)
    assert found[0].filename == __file__
    assert sets.sizes.tolist() == [8] * 10
    assert index.label_sets(x[1400:1410], alpha=0.5).sizes.max() <= 8


def test_an_index_without_a_calibration_says_so(world, embedder):
    x, _ = world
    with pytest.raises(NotFittedError, match="not calibrated"):
        embedder.index(x[:9], ["a"] * 9, progress=False).label_sets(x[:2])


def test_label_sets_survive_a_save(index, world, embedder, tmp_path):
    x, _ = world
    index.save(tmp_path / "saved")
    ours, theirs = (
        i.label_sets(x[1400:1420]) for i in (index, Index.load(tmp_path / "saved", embedder))
    )
    assert np.array_equal(ours.members, theirs.members)
    assert np.array_equal(ours.score, theirs.score)


@pytest.mark.parametrize("name", ["labels.codes", "labels.clustering_codes", "labels.scores"])
def test_damaged_labels_are_refused(name, index):
    part = calibration_part(index.calibration)
    bad = part.arrays[name].copy()
    bad[0] = -1 if "codes" in name else math.nan
    for value in (bad, part.arrays[name][1:]):
        with pytest.raises(FileFormatError, match="calibration.labels/"):
            calibration_of(part.content, {**part.arrays, name: value})


@pytest.mark.parametrize("how", [{"alpha": 0}, {"alpha": 1.5}, {"confidence": 1}])
def test_shares_outside_their_range(how, index, world):
    with pytest.raises(InputError, match=next(iter(how))):
        index.label_sets(world[0][:2], **how)


def test_numbers_of_the_docstring():
    assert fewest_queries(0.1, _label_sets.LEAST_RANK) == 49
    k = math.floor(0.1 * 151)
    assert round(float(beta.std(151 - k, k)), 3) == 0.024
