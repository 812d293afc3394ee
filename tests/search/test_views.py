"""Several views of one thing, one answer: weights, what is found, and what is guaranteed of it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import Tensor

from benchmarks.datasets import load
from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, LabelError, StaleCalibrationWarning
from laplace_metric.search import Index
from laplace_metric.search._views import Views

DISTANCES = ("euclidean", "arccos")


def points(n: int, seed: int, spread: float = 0.8) -> tuple[Tensor, Tensor]:
    """Points of six classes in six dimensions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    x = 2 * torch.nn.functional.one_hot(y, 6) + spread * torch.randn(n, 6, generator=g)
    return x.double(), y


def several(n: int, seed: int, views: int = 5, wrong: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Views of n things, what they are of, and their labels; some are views of something else."""
    g = torch.Generator().manual_seed(seed)
    x, y = points(n, seed, 0.3)
    of = torch.arange(n).repeat_interleave(views)
    rows = x[of] + 0.9 * torch.randn(n * views, 6, generator=g, dtype=torch.float64)
    bad = torch.rand(n * views, generator=g) < wrong
    rows[bad] = points(int(bad.sum()), seed + 1)[0]
    return rows, of, y[of]


def index_of(distance: str = "euclidean", seed: int = 0) -> Index:
    x, y = points(300, seed)
    embedder = LaplaceEmbedder.from_embeddings(x[:150], y[:150], distance=distance)
    return embedder.index(x[150:], y[150:], progress=False)


# ---------------------------------------------------------------- weights


def weights_by_hand(v: Tensor, ids: list[int]) -> list[float]:
    """Weights from the equations, one pair of views after another."""
    agreement = []
    for i, a in enumerate(v):
        others = [
            float(a @ b / (a.norm() * b.norm()))
            for j, b in enumerate(v)
            if ids[j] == ids[i] and j != i
        ]
        agreement.append(max(sum(others) / len(others), 0) ** 2 if others else 0.0)
    found = []
    for i, own in enumerate(agreement):
        mates = [j for j, other in enumerate(ids) if other == ids[i]]
        total = sum(agreement[j] for j in mates)
        found.append(own / total if total > 1e-40 else 1 / len(mates))
    return found


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 5), st.integers(0, 99))
def test_weights_are_those_of_the_equations(ids, width, seed):
    v = torch.randn(len(ids), width, generator=torch.Generator().manual_seed(seed)).double()
    found = Views.read(ids, len(ids)).weights(v)
    np.testing.assert_allclose(found, weights_by_hand(v, ids), atol=1e-6)


def test_weights_are_the_squares_of_the_agreement():
    a, b, c = torch.eye(3).double()
    v = torch.stack([a, (a + b) / 2**0.5, (a + c) / 2**0.5])  # cosines .71, .71 and .5
    w = Views.read([0, 0, 0], 3).weights(v)
    far, near = 0.5**0.5 + 0.5**0.5, 0.5**0.5 + 0.5
    expected = torch.tensor([far**2, near**2, near**2]).double()
    torch.testing.assert_close(w, expected / expected.sum())


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1e150])
def test_weights_do_not_depend_on_lengths(scale):
    v = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).double()
    views = Views.read([0, 0, 0, 1, 1, 1], 6)
    torch.testing.assert_close(views.weights(scale * v), views.weights(v))


def test_a_wrong_view_hardly_counts_and_two_views_count_alike():
    v = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.9, 0.0], [-1.0, 0.2], [0.3, 1.0], [1.0, 0.0]])
    w = Views.read(["a"] * 4 + ["b"] * 2, 6).weights(v.double())
    assert float(w[3]) < 1e-6
    assert float(w[:3].min()) > 0.3
    torch.testing.assert_close(w[4:], torch.tensor([0.5, 0.5]).double())


def test_views_that_agree_with_none_count_alike():
    v = torch.eye(4).double()
    assert Views.read([0, 0, 0, 0], 4).weights(v).tolist() == [0.25] * 4
    assert Views.read([0, 0], 2).weights(v[:2] - v[:2].flip(0)).tolist() == [0.5, 0.5]
    assert Views.read([0, 0], 2).weights(0 * v[:2]).tolist() == [0.5, 0.5]


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize("distance", DISTANCES)
def test_one_view_of_each_is_the_plain_answer(distance):
    index, (x, _) = index_of(distance), points(30, 3)
    plain, viewed = index.search(x, 5), index.search(x, 5, of=[f"id {i}" for i in range(30)])
    assert np.array_equal(plain.positions, viewed.positions)
    torch.testing.assert_close(plain.distance, viewed.distance)
    assert plain.query_ids is None
    assert viewed.query_ids.tolist() == [f"id {i}" for i in range(30)]


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_views_are_one_and_their_order_does_not_matter(distance):
    index, (x, _) = index_of(distance), points(20, 3)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    of = torch.arange(20).repeat(3)[order]
    found, plain = index.search(x.repeat(3, 1)[order], 5, of=of), index.search(x, 5)
    back = np.argsort(found.query_ids)
    assert np.array_equal(found.positions[back], plain.positions)
    torch.testing.assert_close(found.distance[back], plain.distance)
    torch.testing.assert_close(found.uncertainty[back], plain.uncertainty)


def test_a_search_finds_the_weighted_mean_of_the_head_inputs():
    index = index_of("euclidean")
    rows, of, _ = several(15, 4)
    found = index.search(rows, 5, of=of)
    encoded, _ = index.query_encoder.all(index.query_encoder.read("q", rows), progress=False)
    v = index.ranking.query_vectors(encoded) - index.engine.vectors.mean(0)
    w = torch.tensor(weights_by_hand(v, of.tolist())).double()
    pooled = torch.stack([(w[of == i, None] * rows[of == i]).sum(0) for i in range(15)])
    plain = index.search(pooled, 5)
    assert np.array_equal(found.positions, plain.positions)
    torch.testing.assert_close(found.distance, plain.distance)


def test_tables_and_answers_name_the_ids():
    index = index_of()
    rows, of, labels = several(400, 5)
    index.calibrate(rows, labels, of=of)
    names = np.array([f"track {i}" for i in of.tolist()])
    answers = index.ask(rows[:15], of=names[:15])
    assert answers.query_ids.tolist() == ["track 0", "track 1", "track 2"]
    assert answers.to_pandas()["query"].tolist() == answers.query_ids.tolist()
    assert answers[[2, 0]].query_ids.tolist() == ["track 2", "track 0"]
    assert "track 1" in repr(answers)
    table = index.search(rows[:15], 2, of=names[:15]).to_pandas()
    assert table["query"].tolist() == np.repeat(answers.query_ids, 2).tolist()


def test_views_of_a_real_digit_find_more_than_one_view_and_than_their_plain_mean(real_data):
    """Digits under noise, a fifth of the views of something else."""
    images = load("mnist", "test", real_data)
    x = torch.as_tensor(images.images[:2_200]).float().reshape(-1, 784) / 255
    y = torch.as_tensor(images.labels[:2_200]).long()
    x = x @ torch.pca_lowrank(x, 64)[2]
    index = LaplaceEmbedder.from_embeddings(x[:500], y[:500]).index(x[:1_500], y[:1_500])
    g = torch.Generator().manual_seed(0)
    of = torch.arange(700).repeat_interleave(5)
    rows = x[1_500:][of]
    wrong = torch.rand(len(rows), generator=g) < 0.2
    rows[wrong] = x[torch.randint(1_500, (int(wrong.sum()),), generator=g)]
    rows += 0.6 * torch.randn(rows.shape, generator=g)
    truth = y[1_500:].numpy()

    def right(found):
        return float((found.labels[:, 0] == truth).mean())

    one = index.search(rows[::5], 1)
    plain = index.search(torch.stack(rows.split(5)).mean(1), 1)
    viewed = index.search(rows, 1, of=of)
    assert right(viewed) > right(plain) + 0.02 > right(one) + 0.1


# ---------------------------------------------------------------- calibrated by ids


def test_each_id_calibrates_once():
    index = index_of()
    rows, of, labels = several(300, 6)
    calibration = index.calibrate(rows, labels, of=of, cross_fit=0)
    assert calibration.of_views
    assert len(calibration.statistics) == 300
    assert "of several views" in repr(calibration)
    report = index.evaluate(*several(200, 7)[::2], of=several(200, 7)[1])
    assert report.queries == 200


def test_the_labels_of_a_loader_are_those_of_the_rows():
    index = index_of()
    rows, of, labels = several(300, 6)
    loader = [(rows[i : i + 250], labels[i : i + 250]) for i in range(0, 1_500, 250)]
    by_loader = index.calibrate(loader, of=of)
    assert by_loader.identity == index.calibrate(rows, labels, of=of).identity


def test_groups_are_those_of_the_rows():
    index = index_of()
    rows, of, labels = several(300, 6)
    calibration = index.calibrate(rows, labels, of=of, groups=[f"day {i % 50}" for i in of])
    assert len(np.unique(calibration.group)) <= 50


def test_what_calibrated_is_what_may_ask():
    index = index_of()
    rows, of, labels = several(300, 6)
    index.calibrate(rows, labels, of=of)
    with pytest.warns(StaleCalibrationWarning, match="several views .* single rows"):
        index.search(rows[:5], 3)
    index.calibrate(*points(400, 8))
    with pytest.warns(StaleCalibrationWarning, match="single rows .* several views"):
        index.search(rows[:5], 3, of=of[:5])


def test_sets_of_single_rows_are_told_where_views_calibrated():
    index = index_of()
    rows, of, labels = several(300, 6)
    index.calibrate(rows, labels, of=of)
    for sets in (index.retrieval_sets, index.label_sets):
        with pytest.warns(StaleCalibrationWarning, match="several views .* single rows"):
            sets(rows[:5], alpha=0.2)


def test_a_guard_of_views_answers_views_and_keeps_that_in_its_file(tmp_path):
    x, y = points(300, 0)
    rows, of, labels = several(400, 6)
    guard = Guard(x, y, held_out=(rows, labels), of=of, precision=0.8)
    asked, ids, _ = several(20, 9)
    answers = guard.ask(asked, of=ids)
    assert len(answers) == 20
    asked_again, again, truth = several(300, 10)
    report = guard.evaluate(asked_again, truth, of=again)
    assert sum(one.queries for one in report.classes) == 300
    guard.save(tmp_path / "guard")
    loaded = Guard.load(tmp_path / "guard")
    assert loaded.ask(asked, of=ids).label.tolist() == answers.label.tolist()
    for one in (guard, loaded):
        with pytest.raises(InputError, match="pass of="):
            one.ask(asked)
    plain = Guard(x, y, precision=0.6)
    with pytest.raises(InputError, match=r"guard\.calibrate\(views, labels, of=ids\)"):
        plain.ask(asked, of=ids)
    plain.calibrate(rows, labels, of=of)
    assert len(plain.ask(asked, of=ids)) == 20


def test_a_guarantee_is_one_of_ids():
    """100 worlds, uneven numbers of views, .15 of them wrong: how often it is broken."""
    broken, given_ = 0, 0
    for world in range(100):
        g = torch.Generator().manual_seed(world)
        x, y = points(200, 1_000 + world, 0.5)
        index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, rank_by="mean", progress=False)
        held, asked = several(500, 2 * world, 6, 0.15), several(1_500, 90_000 + world, 6, 0.15)
        keep = [torch.rand(len(rows), generator=g) < 0.7 for rows, _, _ in (held, asked)]
        (rows, of, labels), (new, ids, truth) = (
            tuple(part[k] for part in some) for some, k in zip((held, asked), keep, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            index.calibrate(rows, labels, of=of, cross_fit=0)
            try:
                rule = index.guarantee(precision=0.8, alpha=None)
            except InputError:
                continue
            answers = index.ask(new, rule, of=ids)
        given_ += 1
        own = Views.read(ids, len(ids)).one_each("labels", truth)
        right = answers.label[answers.answered].astype(int) == own[answers.answered]
        broken += float(right.mean()) < 0.8
    assert given_ > 80
    assert binomtest(broken, given_, 0.05, alternative="greater").pvalue > 0.01


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ([1, 2], "of"),
        ("abc", "pass the id of each of the 3 views"),
        (5, "pass the id of each of the 3 views"),
        ([[1, 2, 3]], "pass the id of each of the 3 views"),
        ({1: 2, 2: 3, 3: 4}, "pass the id of each of the 3 views"),
        ([1, None, 2], "of"),
        ([1, "a", 2], "of"),
        ([0.5, float("nan"), 1.0], "of"),
    ],
)
def test_ids_are_one_for_each_row(of, told):
    index = index_of()
    with pytest.raises((InputError, LabelError), match=told):
        index.search(points(3, 1)[0], 2, of=of)


def test_views_of_one_thing_have_one_label_and_one_group():
    index = index_of()
    rows, of, labels = several(100, 6)
    other = labels.clone()
    other[0] = (other[0] + 1) % 6
    with pytest.raises(InputError, match=r"labels: views.*id 0"):
        index.calibrate(rows, other, of=of)
    named = [f"track {i}" for i in of.tolist()]
    with pytest.raises(InputError, match="labels.*id 'track 0'"):
        index.calibrate(rows, other, of=named)
    with pytest.raises(InputError, match="groups: views.*id 0"):
        index.calibrate(rows, labels, of=of, groups=torch.arange(500))
    with pytest.raises(InputError, match="labels has 3.*500 views"):
        index.calibrate(rows, [1, 2, 3], of=of)
    with pytest.raises(InputError, match="judged by labels"):
        index.calibrate(rows, matches=[[0]] * 500, of=of)


def test_a_guard_needs_held_out_views():
    x, y = points(300, 0)
    with pytest.raises(InputError, match="held_out=\\(views, labels\\)"):
        Guard(x, y, of=[1, 2, 3])


def test_views_that_cancel_are_named():
    x, y = points(40, 0)
    index = LaplaceEmbedder.from_embeddings(x, y, distance="arccos").index(x, y)
    with pytest.raises(InputError, match="id 'a' cancel"):
        index.search(torch.stack([x[0], x[1], -x[1]]), 1, of=["b", "a", "a"])
    euclidean = LaplaceEmbedder.from_embeddings(x, y, distance="euclidean").index(x, y)
    assert len(euclidean.search(torch.stack([x[1], -x[1]]), 1, of=["a", "a"]).ids) == 1
