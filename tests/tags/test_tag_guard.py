"""Tags of queries: what is given, what is kept of it, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import beta
from torch import nn

from benchmarks.datasets import captions, load
from laplace_metric.errors import (
    DependentQueriesWarning,
    FileFormatError,
    InputError,
    NonFiniteError,
)
from laplace_metric.tags import TagGuard
from laplace_metric.tags._tag_sets import TagSets
from laplace_metric.tags._tagged_items import CANDIDATES, NEIGHBOURS, TaggedItems

L, D = 12, 16


def world(n: int, seed: int, *, many: bool = False, noise: float = 0.5):
    """Sums of the directions of tags, under noise; a few rows have most of the tags."""
    g = np.random.default_rng(seed)
    base = np.random.default_rng(99).normal(size=(L, D))
    has = g.random((n, L)) < np.where(np.arange(L) < 4, 0.25, 0.05)
    if many:
        has |= (g.random((n, 1)) < 0.08) & (g.random((n, L)) < 0.6)
    far = np.where(g.random((n, 1)) < 0.3, 2.0, 1.0)
    return (has @ base + noise * far * g.normal(size=(n, D))).astype(np.float32), has


def lists(has) -> list[list[str]]:
    return [[f"tag {place}" for place in row.nonzero()[0]] for row in has]


@pytest.fixture(scope="module")
def guard() -> TagGuard:
    x, has = world(300, 0)
    return TagGuard(x, lists(has), 0.7)


# ---------------------------------------------------------------- sets


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.sets(st.sampled_from(["a", "b", "c", "ä\0", "longer name"])), min_size=1, max_size=9
    ).filter(any)
)
def test_lists_and_a_matrix_are_the_same_sets(rows):
    sets = TagSets.of("tags", rows, len(rows))
    names = sorted(set().union(*rows))
    assert sets.names.values.tolist() == names
    dense = np.array([[name in row for name in names] for row in rows])
    np.testing.assert_array_equal(sets.has.toarray(), dense)
    np.testing.assert_array_equal(sets.count, dense.sum(1))
    kinds = (dense, dense.astype(float), torch.tensor(dense))
    for matrix in kinds:
        same = TagSets.of("tags", matrix, len(rows))
        np.testing.assert_array_equal(same.has.toarray(), dense)


def test_names_that_are_not_known_count_as_missed():
    known = TagSets.of("tags", [["a", "b"]], 1).names
    sets = TagSets.of("held_out", [["b", "z"], []], 2, known)
    assert sets.has.toarray().tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert sets.count.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("tags", "advice"),
    [
        ("red", "pass a collection"),
        (["red", "round"], "a list of the tags"),
        ([["red"]], "pass a set for each"),
        ([["red"], ["round", 3]], r"tags\[1\] has numbers"),
        ([[], []], "no item has a tag"),
        (np.array([[0, 2], [1, 0]]), "0 and 1"),
        (np.array([[0.0, np.nan], [1, 0]]), "0 and 1"),
        ([{"red": 1}, ["round"]], "a list of the tags"),
        ([None, ["round"]], r"tags\[0\] is None: pass \[\] for an item without tags"),
        (None, "pass a collection"),
        (5, "pass a collection"),
        (np.array(3), r"\[N, L\]"),
        (np.zeros((2, 3, 1)), r"\[N, L\]"),
        (torch.arange(2), r"\[N, L\]"),
        ([[["a"]], ["b"]], r"tags\[0\] holds \['a'\]"),
        ([["a", None], ["b"]], r"tags\[0\] holds None"),
        (np.zeros((2, 3)), "tags: no item has a tag"),
        ([["a", " "], ["b"]], "empty text"),
        ([[True], [5]], "whole numbers or strings"),
        ([[0, 1, 1], [1, 0, 0]], "numpy.array"),
        (pd.DataFrame({"red": [0, 1]}), "to_numpy"),
        (csr_array(np.eye(2)), "toarray"),
    ],
)
def test_what_is_no_set_of_tags_is_refused(tags, advice):
    with pytest.raises(InputError, match=advice):
        TagSets.of("tags", tags, 2)


def test_tags_of_an_item_are_distinct_and_plain():
    given = [torch.tensor([1, 1, 2]), np.array([2]), (3, 3), {1}, iter([5])]
    sets = TagSets.of("tags", given, 5)
    assert sets.count.tolist() == [2, 1, 1, 1, 1]
    assert sets.has.max() == 1


def test_a_matrix_of_queries_has_the_columns_of_the_items(tmp_path):
    (x, has), (q, truth) = world(200, 8), world(300, 9)
    with pytest.raises(InputError, match="12 columns|have 12"):
        TagGuard(x, has, 0.6, held_out=(q, truth[:, :5]))
    guard = TagGuard(x, has, 0.6)
    with pytest.raises(InputError, match="have 12"):
        guard.evaluate(q, truth[:, :3])
    found = guard.ask(q)[0]
    assert all(type(tag) is int for tag, _ in found)
    guard.save(tmp_path / "tags.safetensors")
    loaded = TagGuard.load(tmp_path / "tags.safetensors")
    assert loaded.evaluate(q, truth) == guard.evaluate(q, truth)
    with pytest.raises(InputError, match="have 12"):
        loaded.evaluate(q, truth[:, :3])
    guard._columns = None  # as of lists, and of files that do not have it
    guard.save(tmp_path / "tags.safetensors")
    assert TagGuard.load(tmp_path / "tags.safetensors")._columns is None


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("spherical", [True, False])
def test_shares_are_those_of_brute_force_in_float64(spherical):
    x, has = world(80, 3)
    items = TaggedItems.of(x.astype(np.float64), has, spherical=spherical)
    q = world(30, 4)[0].astype(np.float64)
    hits = items.hits(items.near(items.read("queries", q)))

    def unit(v):
        return v / np.linalg.norm(v, axis=1, keepdims=True) if spherical else v

    a, b = unit(x.astype(np.float64)), unit(q)
    own = np.linalg.norm(a[:, None] - a[None], axis=2)
    others = np.sort(own, 1)[:, 1 : NEIGHBOURS + 1]
    width = 0.5 * np.median(others[:, -1] - others[:, 0])
    distance = np.linalg.norm(b[:, None] - a[None], axis=2)
    for query in range(len(q)):
        near = np.argsort(distance[query])[:NEIGHBOURS]
        d = distance[query, near]
        w = np.exp(-(d - d[0]) / width)
        share = w @ has[near] / w.sum()
        best = np.argsort(-share, kind="stable")[: int((share > 0).sum())][:CANDIDATES]
        np.testing.assert_allclose(
            hits.share[query, : len(best)], share[best], rtol=1e-9, atol=1e-12
        )
        assert set(hits.tag[query, : len(best)]) == set(best)
        assert (hits.tag[query, len(best) :] == -1).all()
        np.testing.assert_allclose(hits.evidence["distance"][query], d[0], rtol=1e-9)


@pytest.mark.parametrize("sets", [[[]] * 40, [["another name"]] * 40, np.zeros((40, L))])
def test_queries_without_a_right_tag_are_told_by_their_argument(sets):
    x, has = world(100, 0)
    tags = has if isinstance(sets, np.ndarray) else lists(has)
    with pytest.raises(InputError, match=r"held_out: none of 40 queries .* named as those of the"):
        TagGuard(x, tags, 0.5, held_out=(world(40, 1)[0], sets))


def tied_world(n: int, seed: int):
    """Items of few whole numbers, of which many are equally far from a query."""
    g = np.random.default_rng(seed)
    x = np.unique(g.integers(0, 3, (n, 6)), axis=0).astype(np.float32)
    return g.permutation(x), g.random((len(x), L)) < 0.3


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 99), n=st.integers(30, 150), spherical=st.booleans())
def test_no_share_depends_on_the_order_of_the_items(seed, n, spherical):
    x, has = tied_world(n, seed)
    x, has = (x[x.any(1)], has[x.any(1)]) if spherical else (x, has)
    order = np.random.default_rng(seed + 1).permutation(len(x))
    has[0] = True  # every tag occurs
    queries = torch.randint(0, 3, (9, 6), generator=torch.Generator().manual_seed(seed)).float() + 1
    first = TaggedItems.of(x, has, spherical=spherical)
    other = TaggedItems.of(x[order], has[order], spherical=spherical)
    assert first.width == pytest.approx(other.width, rel=1e-6)
    if len(first) < len(x):  # some have one direction
        return
    for one, two in (
        (first.hits(first.near(first.read("q", queries))),
         other.hits(other.near(other.read("q", queries)))),
        (first.hits(first.others()), other.hits(other.others())),
    ):  # fmt: skip
        same = slice(None) if len(one.tag) == len(queries) else order
        np.testing.assert_array_equal(one.tag[same], two.tag)
        np.testing.assert_allclose(one.share[same], two.share, rtol=0, atol=1e-9)


def test_items_that_tie_for_the_last_places_share_them():
    """The mean over all orders in which tied items could stand, here drawn."""
    x, has = tied_world(120, 0)
    items = TaggedItems.of(x, has, spherical=False)
    query = np.ones((1, 6))
    hits = items.hits(items.near(items.read("q", query)))
    distance = np.linalg.norm(x - query, axis=1)
    last = np.sort(distance)[NEIGHBOURS - 1]
    assert (distance <= last + 1e-9).sum() > NEIGHBOURS + 5, "ties"
    g, weighed = np.random.default_rng(1), np.exp(-(distance - distance.min()) / items.width)
    shares = np.zeros(L)
    for _ in range(4000):
        near = np.lexsort((g.random(len(x)), distance.round(9)))[:NEIGHBOURS]
        shares += weighed[near] @ has[near] / weighed[near].sum() / 4000
    found = dict(zip(hits.tag[0].tolist(), hits.share[0].tolist(), strict=True))
    np.testing.assert_allclose([found.get(tag, 0.0) for tag in range(L)], shares, atol=0.01)


def test_permuted_items_give_the_same_tags():
    x, has = tied_world(500, 2)
    held_out = tied_world(700, 3)
    held_out = held_out[0] + 0.1, held_out[0][:, :1] > np.arange(L) % 3
    has = x[:, :1] > np.arange(L) % 3
    order = np.random.default_rng(4).permutation(len(x))
    first, other = (
        TagGuard(x[rows], has[rows], 0.6, held_out=held_out, distance="euclidean")
        for rows in (slice(None), order)
    )
    one, two = first.ask(x[:100] + 0.2), other.ask(x[:100] + 0.2)
    np.testing.assert_array_equal(one.tag, two.tag)
    np.testing.assert_array_equal(one.given, two.given)
    np.testing.assert_allclose(one.probability, two.probability, atol=1e-9)
    assert one.given.any()


def test_equal_items_are_one_with_the_tags_of_all():
    x, has = world(60, 5)
    twice = TaggedItems.of(
        np.concatenate([x, x[:10]]), np.concatenate([has, ~has[:10]]), spherical=True
    )
    assert len(twice) == 60
    assert twice.tags.count[:10].tolist() == [L] * 10
    np.testing.assert_array_equal(twice.tags.has.toarray()[10:], has[10:])


# ---------------------------------------------------------------- what is given


def test_most_given_tags_are_right(guard):
    x, has = world(2_000, 1)
    report = guard.evaluate(x, lists(has))
    assert report.precision > 0.7
    assert report.recall > 0.5
    answers = guard.ask(x)
    right = sum(
        tag in own for tags, own in zip(answers, lists(has), strict=True) for tag, _ in tags
    )
    assert (report.given, report.right) == (answers.given.sum(), right)
    assert report.tags == has.sum()
    assert report.recall == report.right / has.sum()
    assert report.tagged == answers.given.any(1).sum()
    assert str(report).startswith(f"TagReport: {report.right:,} of {report.given:,}")
    assert set(answers.to_pandas().columns) == {"query", "tag", "probability", "given"}


def test_probabilities_are_those_of_the_tags(guard):
    x, has = world(3_000, 2)
    answers = guard.ask(x)
    there = answers.tag != None  # noqa: E711 - of an array of objects
    codes = np.where(
        there, [[int(str(t).split()[-1]) if t else 0 for t in r] for r in answers.tag], 0
    )
    right = np.take_along_axis(has, codes, 1)
    for low in np.arange(0.1, 0.9, 0.2):
        some = there & (answers.probability >= low) & (answers.probability < low + 0.2)
        assert abs(right[some].mean() - answers.probability[some].mean()) < 0.08


def test_possible_tags_keep_a_recall():
    x, has = world(600, 6)
    guard, wider = TagGuard(x, has, 0.6, miss=0.3), TagGuard(x, has, 0.6, miss=0.1)
    q, truth = world(2_000, 7)
    answers = guard.ask(q)
    some = truth.any(1)
    found = np.zeros(len(q))
    for query in np.flatnonzero(some):
        possible = answers.tag[query][answers.possible[query]].tolist()
        found[query] = np.isin(truth[query].nonzero()[0], possible).mean()
    assert found[some].mean() > 0.68
    assert wider.ask(q).possible.sum() > answers.possible.sum() > 0
    assert "possible" in answers.to_pandas().columns


def test_tags_that_no_item_has_are_missed():
    """Half of the tags of each query that calibrates can never be found."""
    (x, has), (q, truth) = world(200, 8), world(300, 9)
    tags = [[*own, *(f"unknown {name}" for name in own)] for own in lists(truth)]
    with pytest.raises(InputError, match="miss"):
        TagGuard(x, lists(has), 0.6, held_out=(q, tags), miss=0.3)


def test_held_out_queries_calibrate_and_groups_of_them_count_once():
    (x, has), (q, truth) = world(200, 8), world(300, 9)
    guard = TagGuard(x, has, 0.6, held_out=(q, truth))
    assert "held-out" in str(guard)
    grouped = TagGuard(x, has, 0.6, held_out=(q, truth), groups=np.arange(300) // 3)
    assert grouped.calibration.queries.n_groups == 100
    with pytest.raises(InputError, match="held_out"):
        TagGuard(x, has, 0.6, groups=np.arange(200))


def test_tags_that_may_be_left_out_count_groups():
    (x, has), (q, truth) = world(200, 8), world(300, 9)
    asked = {"held_out": (q, truth), "miss": 0.2}
    guard = TagGuard(x, has, 0.6, groups=np.arange(300) // 6, **asked)
    assert guard.ask(world(300, 7)[0]).possible.any()
    with pytest.raises(InputError, match="at least 33 groups.*of 6 qu"):
        TagGuard(x, has, 0.6, groups=np.arange(300) // 6, **asked | {"miss": 0.03})


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-6, 1e20, 1e30])
def test_directions_have_no_length(guard, scale):
    q = world(50, 1)[0]
    found, same = guard.ask(q * np.float32(scale)), guard.ask(q)
    np.testing.assert_allclose(found.probability, same.probability, rtol=1e-3, atol=1e-4)
    euclidean = TagGuard(*world(100, 0), 0.5, distance="euclidean")
    if scale > 1e19:
        with pytest.raises(NonFiniteError, match="arccos"):
            euclidean.ask(q * np.float32(scale))


def test_copies_of_items_are_told():
    x, has = world(300, 0)
    near = (x + 0.01 * np.random.default_rng(1).normal(size=x.shape)).astype(np.float32)
    with pytest.warns(DependentQueriesWarning, match="near-copies of items"):
        TagGuard(x, has, 0.5, held_out=(near, has))
    with pytest.warns(DependentQueriesWarning, match="near-copies of others"), suppress(InputError):
        TagGuard(np.concatenate([x, near]), np.concatenate([has, has]), 0.5)


def test_given_tags_are_possible_and_the_likeliest_comes_first():
    x, has = world(600, 6)
    answers = TagGuard(x, has, 0.6, miss=0.3).ask(world(300, 7)[0])
    assert (answers.possible | ~answers.given).all()
    for tags in answers:
        assert [p for _, p in tags] == sorted((p for _, p in tags), reverse=True)
    with pytest.raises(InputError, match="number.*query"):
        answers[0:2]


def test_no_query_has_no_tags(guard):
    assert len(guard.ask(np.empty((0, D), np.float32))) == 0
    report = guard.evaluate(np.empty((0, D), np.float32), [])
    assert (report.queries, report.given) == (0, 0)
    assert "0 of 0" in str(report)
    x, has = world(60, 0)
    with pytest.raises(InputError, match="held_out.*no query"):
        TagGuard(x, lists(has), 0.5, held_out=(x[:0], []))


def test_groups_are_read_once(guard):
    (x, has), (q, truth) = world(200, 8), world(300, 9)
    grouped = TagGuard(x, has, 0.6, held_out=(q, truth), groups=(i // 3 for i in range(300)))
    assert grouped.calibration.queries.n_groups == 100


def test_a_seed_makes_it_repeatable_and_nothing_global_moves(guard):
    state = torch.random.get_rng_state()
    x, has = world(300, 0)
    again = TagGuard(x, lists(has), 0.7)
    assert torch.equal(torch.random.get_rng_state(), state)
    q = world(50, 1)[0]
    np.testing.assert_array_equal(again.ask(q).probability, guard.ask(q).probability)
    one = guard.ask(q[3])
    np.testing.assert_allclose(one.probability[0], guard.ask(q).probability[3], rtol=1e-9)


# ---------------------------------------------------------------- files and bad input


def test_a_file_gives_the_same_answers(guard, tmp_path):
    guard.save(tmp_path / "tags.safetensors")
    loaded, q = TagGuard.load(tmp_path / "tags.safetensors"), world(50, 1)[0]
    before, after = guard.ask(q), loaded.ask(q)
    assert list(before) == list(after)
    np.testing.assert_array_equal(before.probability, after.probability)
    assert str(loaded) == str(guard)


def test_damage_is_told(guard, tmp_path):
    path = tmp_path / "tags.safetensors"
    guard.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(FileFormatError, match="tags.safetensors"):
        TagGuard.load(path)
    place = len(whole) // 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(FileFormatError):
        TagGuard.load(path)
    items = guard.items
    codes = np.full_like(items.codes, len(items.names))
    forged = TagGuard.__new__(TagGuard)
    vars(forged).update({**vars(guard), "items": TaggedItems(
        items.vectors, items.starts, codes, items.width, items.spherical, items.names
    )})  # fmt: skip
    forged.save(path)
    with pytest.raises(FileFormatError, match="tags.*its items"):
        TagGuard.load(path)


@pytest.mark.parametrize(
    ("change", "error", "advice"),
    [
        ({"precision": 1.5}, InputError, "precision"),
        ({"precision": 0.999}, InputError, "guaranteed"),
        ({"miss": 1e-4}, InputError, "miss"),
        ({"distance": "cosine"}, InputError, "arccos"),
        ({"held_out": 3}, InputError, r"\(queries, tags\)"),
        ({"vectors": np.full((60, D), np.nan)}, NonFiniteError, "NaN"),
        ({"vectors": np.zeros((60, D))}, InputError, "direction"),
        ({"vectors": np.ones((60, D))}, InputError, "distinct items"),
    ],
)
def test_bad_input_says_what_to_do(change, error, advice):
    x, has = world(60, 10)
    whole = {"vectors": x, "tags": has, "precision": 0.5} | change
    with pytest.raises(error, match=advice):
        TagGuard(**whole)


def test_queries_of_another_width_are_refused(guard):
    with pytest.raises(InputError, match="queries"):
        guard.ask(np.ones((3, D + 1)))


# ---------------------------------------------------------------- worlds


@pytest.mark.parametrize("many", [False, True], ids=["plain", "few queries have most tags"])
def test_a_precision_of_tags_is_broken_no_more_often_than_said(many):
    """Estimand: right tags over given tags, of new queries; at most 5 % of the guards are below."""
    made = broken = 0
    for seed in range(100):
        x, has = world(3_400, 1_000 + seed, many=many)
        try:
            guard = TagGuard(x[:400], has[:400], 0.7)
        except InputError:
            continue
        made += 1
        broken += guard.evaluate(x[400:], has[400:]).precision < 0.7
    assert made > 60
    assert beta.ppf(0.05, max(broken, 1), made - broken + 1) <= 0.05 or broken == 0


def test_groups_and_keywords_of_emoji(real_data):
    """Averaged pixels of drawings, in place of an encoder: what is given is right all the same."""
    drawings = load("emoji", "train", real_data)
    words = captions("emoji", "train", real_data)
    _, first = np.unique(drawings.extras["base"].numpy(), return_index=True)
    x = nn.functional.avg_pool2d(torch.as_tensor(drawings.images)[first].float(), 8).flatten(1)
    groups = [drawings.class_names[int(drawings.labels[i])].split(" > ") for i in first]
    tags = [[*own, *words[i][:-1]] for own, i in zip(groups, first, strict=True)]
    order = np.random.default_rng(0).permutation(len(x))
    items, asked = order[:800], order[800:]
    guard = TagGuard(x[items], [tags[i] for i in items], 0.6)
    report = guard.evaluate(x[asked], [tags[i] for i in asked])
    assert report.precision > 0.6
    assert report.given > 0.3 * len(asked)


def test_a_tag_of_every_item_is_named():
    x = np.random.default_rng(0).normal(size=(60, 4))
    tags = [["photo", "big" if value > 0 else "small"] for value in x[:, 0]]
    with pytest.raises(InputError, match="every item has 'photo'.*leave it out"):
        TagGuard(x, tags, precision=0.5)
