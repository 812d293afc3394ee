"""How many queries of a batch may be unknown, and what is said of more."""

import copy
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._conformal import least_common_p_values
from laplace_metric.calibration._martingale import STAKES, log_share
from laplace_metric.calibration._unknown_share import COUNTED, RARE, UnknownCount, UnknownShare
from laplace_metric.errors import LaplaceMetricWarning, UnfamiliarQueriesWarning

WIDTH, N_CLASSES = 16, 8


def draw(n, seed, turned=False):
    g = np.random.default_rng(seed)
    middle = np.random.default_rng(0).normal(size=(N_CLASSES, WIDTH))
    y = g.integers(0, N_CLASSES, n)
    x = middle[y] + 0.6 * g.normal(size=(n, WIDTH))
    if turned:  # as of another encoder
        x = x @ np.linalg.qr(np.random.default_rng(9).normal(size=(WIDTH, WIDTH)))[0]
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def index():
    x, y = draw(400, 1)
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    index.calibrate(*draw(400, 2), portable=True)
    return index


def told(ask):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ask()
    return [each for each in seen if issubclass(each.category, UnfamiliarQueriesWarning)]


@pytest.mark.parametrize(("m", "queries"), [(40, 200), (200, 50), (200, 2000), (1000, 300)])
def test_queries_like_the_calibration_are_told_as_rarely_as_asked_for(m, queries):
    g, trials, rejected = np.random.default_rng(0), 400, 0
    share = UnknownShare(0.05, m, m)
    for _ in range(trials):
        p = least_common_p_values(g.normal(size=(m, 3)), g.normal(size=(queries, 3)))
        rejected += share.tail(int((p <= 0.05).sum()), queries) < 0.02
    assert rejected <= 18  # of 400 at .02: above with probability .0006


def test_what_is_expected_counts_the_open_set_queries():
    assert UnknownShare(0.05, 399, 399).expected == pytest.approx(0.05)
    assert UnknownShare(0.05, 399, 532).expected == pytest.approx(0.25 + 0.75 * 0.05)
    assert UnknownShare(0.05, 300, 400).tail(270, 1000) > RARE
    assert UnknownShare(0.05, 400, 400).tail(270, 1000) < RARE
    assert UnknownShare(0.001, 40, 40).tail(1, 100) == 0  # none can be unknown
    assert UnknownShare(0.05, 40, 40).tail(0, 100) == 1
    assert UnknownShare(0.05, 400, 400).tail(1, 1) == pytest.approx(0.05, abs=0.003)


def test_a_part_of_the_queries_is_told_with_its_interval(index):
    strange, usual = draw(300, 4, turned=True)[0], draw(700, 5)[0]
    seen = told(lambda: index.search(np.concatenate([strange, usual]), 5))
    assert len(seen) == 1
    message = str(seen[0].message)
    unknown = int(index.search(np.concatenate([strange, usual]), 5).unknown.sum())
    assert 150 < unknown < 400
    assert f"{unknown} of 1,000 queries ({unknown / 1000:.0%}, 95% interval " in message
    assert "where about 5.0% are expected" in message
    assert "same encoder and version" in message
    assert "open_set_fraction=" in message
    assert seen[0].filename == __file__


def test_few_queries_are_enough_and_one_is_not(index):
    x = draw(4000, 4, turned=True)[0]
    unknown = x[index.search(x).unknown.numpy()]
    assert told(lambda: index.search(unknown[:3]))
    assert not told(lambda: index.search(unknown[:1]))


@pytest.mark.parametrize("seed", range(5))
def test_usual_queries_are_not_told(index, seed):
    for n in (1, 10, 100, 2000):
        assert not told(lambda n=n: index.search(draw(n, 100 + seed)[0], 5))


def by_arrays(index, x):
    asked, items = index.encoder(torch.from_numpy(x)), index.items
    distances, rows = torch.cdist(asked.mean, items.encoded.mean).topk(20, largest=False)
    labels = items.labels.values[rows.numpy()]
    return index.calibration.apply(distances, labels, epistemic=asked.epistemic)


@pytest.mark.parametrize(
    "ask",
    [
        lambda index, x: index.search(x, 3),
        lambda index, x: index.ask(x),
        lambda index, x: index.ask(x, index.guarantee(precision=0.5)),
        by_arrays,
    ],
)
def test_each_way_to_ask_a_batch_tells_it_once(index, ask):
    assert len(told(lambda: ask(index, draw(300, 4, turned=True)[0]))) == 1
    assert not told(lambda: ask(index, draw(300, 5)[0]))


def test_open_set_queries_that_were_expected_are_not_told():
    x, y = draw(400, 1)
    few = y < N_CLASSES // 2
    index = LaplaceEmbedder.from_embeddings(x[few], y[few]).index(x[few], y[few], progress=False)
    index.calibrate(*draw(800, 2))
    assert not told(lambda: index.search(draw(1000, 3)[0]))
    held_out = draw(800, 2)
    known = held_out[1] < N_CLASSES // 2
    index.calibrate(held_out[0][known], held_out[1][known])
    assert told(lambda: index.search(draw(1000, 3)[0]))
    assert issubclass(UnfamiliarQueriesWarning, LaplaceMetricWarning)


@pytest.mark.parametrize(
    ("alpha", "n", "queries"), [(0.05, 100, 50), (0.1, 400, 1000), (0.2, 39, 20)]
)
def test_without_open_set_queries_the_tail_is_beta_binomial(alpha, n, queries):
    """Of n exchangeable calibration queries rank r is Beta(r, n + 1 - r) distributed."""
    from scipy.stats import betabinom

    rank, share = int(alpha * (n + 1) + 1e-9), UnknownShare(alpha, n, n)
    for unknown in range(1, queries, max(1, queries // 15)):
        exact = betabinom.sf(unknown - 1, queries, rank, n + 1 - rank)
        assert share.tail(unknown, queries) == pytest.approx(exact, abs=0.004)


def alarms(count, unknown):
    return [at for at, one in enumerate(unknown) if count.take(int(one), 1) is not None]


def test_strange_queries_are_told_where_they_come_one_by_one(index):
    again = copy.deepcopy(index)
    strange, usual = draw(40, 4, turned=True)[0], draw(300, 5)[0]
    assert not told(lambda: [again.ask(x[None]) for x in usual[:60]])
    seen = told(lambda: [again.ask(x[None]) for x in strange])
    assert len(seen) == 1
    message = str(seen[0].message)
    assert re.match(
        r"\d+ of \d+ queries \(\d+% since they became more, over several calls\)", message
    )
    assert "where about 5.0% are expected" in message
    assert seen[0].filename == __file__


def test_an_excess_is_told_once_and_the_next_one_again():
    g = np.random.default_rng(0)
    stream = np.concatenate([np.ones(300), g.random(1200) < 0.05, g.random(300) < 0.6])
    first, second = alarms(UnknownCount(UnknownShare(0.05, 400, 400)), stream)
    assert first < 10
    assert 1500 < second < 1600


def test_a_batch_that_was_told_by_itself_is_not_told_again():
    count = UnknownCount(UnknownShare(0.05, 400, 400))
    assert count.take(50, 100, told=True) is None
    assert not alarms(count, np.ones(50))


@pytest.mark.parametrize(("m", "others"), [(60, 0), (400, 0), (200, 50)])
def test_usual_queries_are_hardly_ever_told_in_a_whole_stream(m, others):
    g, wrong = np.random.default_rng(1), 0
    for _ in range(20):
        share = UnknownShare(0.05, m, m + others)
        rate = np.sort(g.random(m))[int(0.05 * (m + 1)) - 1]  # of known queries, with this set
        open_set = g.beta(others + 1, m + 1) if others else 0.0
        wrong += bool(alarms(UnknownCount(share), g.random(500) < open_set + (1 - open_set) * rate))
    assert wrong == 0


def test_the_largest_share_is_that_of_its_beta_distribution():
    assert UnknownShare(0.05, 400, 400).most == pytest.approx(beta(20, 381).ppf(1 - RARE / 4))
    assert UnknownShare(0.05, 10, 10).most == 0
    assert UnknownCount(UnknownShare(0.05, 10, 10)).take(5, 5) is None  # none can be unknown
    both = UnknownShare(0.05, 300, 400).most
    f, r = (beta(a, b).ppf(1 - RARE / 4) for a, b in ((100.5, 300.5), (15, 286)))
    assert both == pytest.approx(f + (1 - f) * r)


def test_a_bet_on_a_call_is_fair_at_the_largest_share():
    count, n = UnknownCount(UnknownShare(COUNTED, 200, 200)), 3
    expected = 0.0
    for unknown in range(n + 1):
        other = UnknownCount(count.calibrated)
        other.take(unknown, n)
        gain = np.exp(other._martingale.bets - log_share(1) + np.log(len(STAKES)))
        expected = expected + gain * binom(n, count.most).pmf(unknown)
    np.testing.assert_allclose(expected, 1.0, rtol=1e-9)


def test_many_threads_count_together():
    count = UnknownCount(UnknownShare(0.05, 400, 400))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: count.take(1, 1), range(200)))
    assert sum(one is not None for one in found) == 1


def test_the_count_is_neither_saved_nor_copied(index, tmp_path):
    count = UnknownCount(UnknownShare(0.05, 400, 400))
    assert alarms(count, np.ones(30))
    for again in (copy.deepcopy(count), pickle.loads(pickle.dumps(count))):
        assert alarms(again, np.ones(30)) == alarms(UnknownCount(count.calibrated), np.ones(30))


def test_frames_of_a_video_that_is_unfamiliar_are_not_told_where_groups_calibrated():
    """Later queries may be of one group, which is unknown as a whole now and then."""
    g = np.random.default_rng(0)
    x, y = draw(400, 1)
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    x, y = (np.repeat(each, 8, 0) for each in draw(60, 2))
    x = (x + 0.05 * g.normal(size=x.shape)).astype(np.float32)
    index.calibrate(x, y, groups=np.repeat(np.arange(60), 8))
    videos, _ = draw(200, 3)
    noise = 0.05 * g.normal(size=(200, 100, WIDTH))
    frames = (videos[:, None] + noise).astype(np.float32)
    found = [index.search(video, k=1) for video in frames[:40]]
    assert any(each.unknown.float().mean() > 0.5 for each in found)
    assert not any(told(lambda video=video: index.search(video, k=1)) for video in frames)
