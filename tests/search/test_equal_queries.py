"""Copies among the queries or items that calibrate: each distinct one counts once."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.calibration._counted_once import counted_once
from laplace_metric.errors import DependentQueriesWarning, FittedQueriesWarning, InputError
from laplace_metric.search._cross_fit import connected
from laplace_metric.search._equal_vectors import equal_vectors, first_rows

CENTRES = np.random.default_rng(0).normal(size=(8, 16))
pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.FewQueriesWarning")


def draw(n, seed):
    g = np.random.default_rng(seed)
    y = g.integers(0, 8, n)
    return (CENTRES[y] + 1.2 * g.normal(size=(n, 16))).astype(np.float32), y


ITEMS = draw(400, 1)


def told(ask):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = ask()
    return found, [str(w.message) for w in seen if issubclass(w.category, FittedQueriesWarning)]


def held_out(rows, seed=2, **how):
    q, z = draw(2000, seed)
    return told(lambda: Guard(*ITEMS, held_out=(q[rows], z[rows]), precision=0.5, **how))


def n_tested(guard):
    return len(guard.calibration.known)


@pytest.mark.parametrize("noise", [0.0, 1e-8])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_equal_vectors_have_one_number_in_any_order(noise, offset):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 16, generator=g, dtype=torch.float64) + offset
    rows = torch.randperm(300, generator=g) % 60
    again = x[rows] + noise * torch.randn(300, 16, generator=g, dtype=torch.float64)
    group = equal_vectors(again)
    assert np.array_equal(group[:, None] == group, (rows[:, None] == rows).numpy())
    assert np.array_equal(np.diff(group[first_rows(group)]), np.ones(59))
    assert len(np.unique(equal_vectors(x + 1e-3 * torch.randn(60, 16, generator=g)))) == 60


def test_near_copies_are_not_equal_and_what_rounding_moves_is():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 16, generator=g, dtype=torch.float64)  # 4 from their mean
    step = torch.nn.functional.normalize(torch.randn(60, 16, generator=g).double(), dim=1)
    for apart, distinct in ((2e-5, 120), (2e-6, 60)):
        assert len(np.unique(equal_vectors(torch.cat([x, x + apart * step])))) == distinct
    far = (x + 100).float()
    again = torch.cat([far, far.nextafter(torch.tensor(torch.inf))])
    assert len(np.unique(equal_vectors(again))) == 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("far", [0, 1, 75])
@pytest.mark.parametrize("size", [1e7, 1e8, 1e30])
def test_vectors_far_away_make_no_copies_of_the_others(size, far, offset, dtype):
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(300, 8, generator=g, dtype=torch.float64) + offset).to(dtype)
    x[:far] = size * torch.randn(far, 8, generator=g, dtype=torch.float64).to(dtype)
    x[200:220] = 0
    again = torch.cat([x, x[torch.randperm(300, generator=g)]])
    group, (_, expected) = equal_vectors(again), np.unique(again, axis=0, return_inverse=True)
    assert np.array_equal(group[:, None] == group, expected[:, None] == expected)


@pytest.mark.parametrize("scale", [1e-20, 1e10, 1e18, 1e19, 1e30])
def test_equal_vectors_are_the_same_in_any_unit(scale):
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)) * scale
    assert len(np.unique(equal_vectors(torch.cat([x, x])))) == 300


@pytest.mark.parametrize(("one", "noise"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-8)])
def test_most_vectors_may_be_copies_of_one(one, noise):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, generator=g, dtype=torch.float64)
    x[:200] = one
    x = x.repeat(2, 1) + noise * torch.randn(600, 8, generator=g, dtype=torch.float64)
    assert len(np.unique(equal_vectors(x))) == 101


def test_a_query_far_away_leaves_the_others_to_calibrate():
    x, y = draw(60, 3)
    x[0] = 3e7
    guard, seen = told(lambda: Guard(*ITEMS, held_out=(x, y), precision=0.5, distance="euclidean"))
    assert n_tested(guard) == 60
    assert not seen


def test_few_vectors_and_vectors_that_are_all_equal():
    for n, width in ((0, 3), (1, 3), (4, 0)):
        assert equal_vectors(torch.zeros(n, width)).tolist() == [0] * n
    assert equal_vectors(torch.ones(5, 3)).tolist() == [0] * 5


def test_one_input_in_batches_of_another_size_is_one_query():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 16))
    x = torch.randn(500, 64)
    with torch.no_grad():
        together = torch.cat([model(x), *[model(part) for part in x.split(7)]])
    assert len(np.unique(equal_vectors(together))) == 500


def test_of_copies_the_first_in_random_order_counts_with_its_group():
    g = np.random.default_rng(0)
    same, group = g.integers(0, 30, 200), g.integers(0, 25, 200)
    drawn = {tuple(counted_once(g.permutation(200), same)) for _ in range(20)}
    assert len(drawn) == 20
    assert all(sorted(same[list(rows)]) == sorted(set(same)) for rows in drawn)
    kept = counted_once(g.permutation(200), same, group)
    pairs = {(same[row], group[row]) for row in kept}
    assert len(pairs) == len({name for name, _ in pairs}) == len(set(same))
    assert len(kept) == sum((same[row], group[row]) in pairs for row in range(200))


def test_copies_of_held_out_queries_are_no_further_queries():
    guard, seen = held_out(np.repeat(np.arange(40), 25))
    assert len(seen) == 1
    assert seen[0].startswith(
        "96% of the queries are copies of others (960 of 1,000). Copies count"
    )
    assert "40 queries calibrate, and a guarantee is one of distinct queries" in seen[0]
    assert n_tested(guard) == 40
    assert guard.calibration.cross_fitted
    alone, _ = held_out(np.arange(40))
    assert alone.rule is None or not alone.rule.proven
    with pytest.raises(InputError, match="15 distinct queries.*at least 20"):
        held_out(np.repeat(np.arange(15), 10))


def test_a_few_copies_leave_a_proven_guarantee_as_it_is():
    guard, seen = held_out(np.r_[np.arange(997), np.arange(3)])
    assert not seen
    assert guard.rule.proven
    assert n_tested(guard) in (498, 499)
    guard, seen = held_out(np.r_[np.arange(980), np.arange(20)])
    assert len(seen) == 1
    assert not guard.rule.proven


def test_copies_in_several_groups_count_in_one_of_them():
    rows = np.r_[np.arange(900), np.zeros(100, int)]
    guard, seen = held_out(rows, groups=np.arange(1000) % 100)
    assert "10% of the queries are copies" in seen[0]
    assert n_tested(guard) == 900
    guard, seen = held_out(np.repeat(np.arange(200), 5), groups=np.repeat(np.arange(100), 10))
    assert not seen  # each in its own group, which counts as it is
    assert len(guard.calibration.group) == 500
    with pytest.raises(InputError, match="10 groups.*what counts"):
        held_out(np.repeat(np.arange(10), 30), groups=np.arange(300))


def test_simulated_open_set_queries_are_a_share_of_the_distinct_ones():
    guard, _ = held_out(np.repeat(np.arange(40), 25), open_set_fraction=0.25)
    assert guard.calibration.known.mean() == 0.75


def test_items_that_are_copies_do_not_find_each_other():
    x, y = ITEMS
    rows = np.r_[np.arange(400), np.arange(80)]
    guard, seen = told(lambda: Guard(x[rows], y[rows], precision=0.5))
    assert len(seen) == 1
    assert "17% of the items are copies of others (80 of 480)" in seen[0]
    assert (len(guard.index), n_tested(guard)) == (480, 400)
    alone, _ = told(lambda: Guard(x, y, precision=0.5))
    right = [found.calibration.right.mean() for found in (guard, alone)]
    assert abs(right[0] - right[1]) < 0.05
    with pytest.raises(InputError, match="distinct items"):
        told(lambda: Guard(np.repeat(x[:8], 30, 0), np.repeat(np.arange(8), 30)))


def test_copies_in_other_groups_are_in_one_fold():
    assert connected(np.array([0, 1, 2, 3]), np.array([0, 1, 0, 2])).tolist() == [0, 1, 0, 2]
    x, y = ITEMS
    rows, groups = np.r_[np.arange(400), np.arange(80)], np.arange(480) // 4
    guard, seen = told(lambda: Guard(x[rows], y[rows], groups=groups, precision=0.5))
    assert "copies of others (80 of 480)" in seen[0]
    assert n_tested(guard) == 400
    with pytest.raises(InputError, match="copies join groups.*1 groups"):
        told(lambda: Guard(np.r_[x, x], np.r_[y, y], groups=np.arange(800) % 399))


def test_an_evaluation_tells_of_copies():
    index = held_out(np.arange(400))[0].index
    q, z = draw(40, 5)
    report, seen = told(lambda: index.evaluate(np.repeat(q, 10, 0), np.repeat(z, 10)))
    assert report.queries == 400
    assert len(seen) == 1
    assert "90% of the queries are copies of others (360 of 400). Each is counted here" in seen[0]
    assert not told(lambda: index.evaluate(*draw(400, 5)))[1]


def test_copies_that_are_added_are_told():
    guard = held_out(np.arange(400))[0]
    new, label = draw(5, 6)
    assert not told(lambda: guard.add(new, label))[1]
    for x, y, share in (
        (new[:1], label[:1], "100%"),
        (ITEMS[0][:20], ITEMS[1][:20], "100%"),
        (np.repeat(draw(1, 7)[0], 5, 0), [0] * 5, "80%"),
    ):
        with pytest.warns(DependentQueriesWarning, match=f"{share}.*new items.*copies"):
            guard.add(x, y)


def test_matches_in_the_place_of_labels():
    x, y = ITEMS
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, progress=False)
    q, z = draw(60, 3)
    q, matches = np.repeat(q, 3, 0), [np.flatnonzero(y == label) for label in np.repeat(z, 3)]
    calibration, seen = told(lambda: index.calibrate(q, matches=matches))
    assert "67% of the queries are copies" in seen[0]
    assert len(calibration.known) == 60
