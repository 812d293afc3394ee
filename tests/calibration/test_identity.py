"""A rule holds for the calibration that tested it: at every door, and after a file."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.calibration import (
    Rule,
    calibrate_scores,
    guarantee,
    read_calibration,
    write_calibration,
)
from laplace_metric.errors import (
    InputError,
    NotFittedError,
    StaleCalibrationWarning,
    UncheckedModelWarning,
)

CENTRES = 1.3 * np.random.default_rng(0).normal(size=(5, 6))


def drawn(seed, n, noise=0.0):
    """Points of five overlapping classes, with a share of random labels."""
    g = np.random.default_rng(seed)
    y = g.integers(0, 5, n)
    labels = np.where(g.random(n) < noise, g.integers(0, 5, n), y)
    return CENTRES[y] + g.normal(size=(n, 6)), labels


@pytest.fixture
def guard():
    return Guard(*drawn(1, 300), precision=0.9)


def test_a_guard_follows_the_calibration_of_its_index_by_whichever_door_it_changes(guard):
    twin = guard.at(0.8)
    before = guard.rule.calibration
    assert twin.rule.calibration == before == guard.calibration.identity
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guard.calibrate(*drawn(2, 400, noise=0.35))
    for each in (guard, twin):
        if each.rule is None:
            with pytest.raises(InputError, match="cannot be guaranteed"):
                each.ask(drawn(3, 5)[0])
        else:
            assert each.rule.calibration == guard.calibration.identity != before
    twin.index.calibrate(*drawn(4, 400))
    assert guard.rule.calibration == twin.rule.calibration == guard.calibration.identity
    assert guard.rule.value != twin.rule.value
    assert twin.ask(drawn(5, 50)[0]).answered.any()


def test_what_is_added_to_one_guard_is_there_for_its_twin(guard):
    twin = guard.at(0.8)
    twin.add(*drawn(6, 10))
    assert len(guard.index) == 310
    assert guard.rule.gallery == twin.rule.gallery
    assert not guard.rule.proven


def rules_of(index):
    """Yield every kind of rule of an index."""
    yield index.guarantee(precision=0.8)
    yield index.guarantee(precision=0.8, of="match")
    yield index.calibration.guarantee(recall=0.3)
    yield index.calibration.largest_guarantee()
    yield index.guarantee_by_class(0.6)


def test_every_rule_refuses_the_results_of_another_index_or_calibration(guard):
    other = Guard(*drawn(7, 300), precision=0.9).index
    queries = drawn(8, 20)[0]
    theirs = other.search(queries)
    hits = guard.index.guarantee(precision=0.6, of="hits")
    for rule in rules_of(guard.index):
        assert rule(guard.index.search(queries)).answered.shape == (20,)
        with pytest.raises(InputError, match=rf"{rule.calibration}[\s\S]*{theirs.calibration}"):
            rule(theirs)
        with pytest.raises(InputError, match="another|other|index"):
            other.ask(queries, rule)
    with pytest.raises(InputError, match=hits.calibration):
        hits.passed(theirs)
    assert Rule.at(0.5)(theirs).answered.shape == (20,)  # guarantees nothing anywhere


def test_a_rule_of_probabilities_of_the_callers_is_of_no_index(guard):
    p = np.linspace(0, 1, 500)
    rule = guarantee(p, p > 0.3, precision=0.9)
    with pytest.raises(InputError, match=r"rule\.value"):
        rule(guard.index.search(drawn(8, 3)[0]))


def test_an_identity_is_of_numbers_and_survives_a_file(guard, tmp_path):
    calibration, path = guard.calibration, tmp_path / "c.safetensors"
    write_calibration(calibration, path)
    assert read_calibration(path).identity == calibration.identity
    guard.save(tmp_path / "guard.safetensors")
    again = Guard.load(tmp_path / "guard.safetensors")
    assert again.calibration.identity == calibration.identity
    rule = guard.index.guarantee(precision=0.8)
    rule.save(tmp_path / "rule.safetensors")
    loaded = Rule.load(tmp_path / "rule.safetensors")
    assert loaded.calibration == calibration.identity
    found = again.index.search(drawn(8, 20)[0])
    assert np.array_equal(loaded(found).answered, rule(found).answered)
    again.index.calibrate(*drawn(9, 200))
    with pytest.raises(InputError, match=loaded.calibration):
        loaded(again.index.search(drawn(8, 20)[0]))


def test_equal_queries_give_equal_identities_and_one_other_label_another():
    (x, y), (q, z) = drawn(1, 300), drawn(2, 200)
    changed = z.copy()
    changed[0] = (changed[0] + 1) % 5
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    one, same, other = (index.calibrate(q, labels).identity for labels in (z, z, changed))
    assert one == same != other


def test_a_rule_made_before_a_class_was_added_says_that_it_no_longer_covers(guard):
    rule, (x, _) = guard.index.guarantee(precision=0.8), drawn(6, 3)
    guard.index.add(x, [7, 7, 7])
    with pytest.warns(StaleCalibrationWarning, match="1 class.*new"):
        guard.index.ask(drawn(8, 3)[0], rule)
    with pytest.warns(StaleCalibrationWarning, match="1 class.*new"):
        rule(guard.index.search(drawn(8, 3)[0]))


def test_a_query_for_which_nothing_was_found_is_not_answered_by_any_threshold():
    (x, y), (q, z) = drawn(1, 60), drawn(2, 100)
    live = False

    def find(v, k):
        near = np.argsort(((v[:, None] - x) ** 2).sum(-1), 1)[:, :k]
        return np.full_like(near, -1) if live else near

    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, rank_by="mean", progress=False)
    index = index.searched_by(find)
    index.calibrate(q, z)
    live = True
    for of in ("label", "match"):
        answers = index.ask(q[:4], Rule.at(0.0, of, alpha=None))
        assert answers.label.tolist() == [None] * 4
        assert set(answers.reason) == {"unfamiliar"}


def test_a_posterior_of_vectors_is_compared_with_its_encoder_by_a_probe(tmp_path):
    torch.manual_seed(0)
    encoder, other = nn.Linear(4, 6), nn.Linear(4, 6)
    y = torch.arange(200) % 4
    x = 3 * nn.functional.one_hot(y, 4) + 0.3 * torch.randn(200, 4)
    vectors = encoder(x).detach()
    path = tmp_path / "p.safetensors"
    LaplaceEmbedder.from_embeddings(vectors, y).save(path)
    with pytest.warns(UncheckedModelWarning, match="probe="):
        LaplaceEmbedder.load(path, other)
    with pytest.raises(InputError, match="probe"):
        LaplaceEmbedder.load(path, other, probe=x[:5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaplaceEmbedder.load(path)
        loaded = LaplaceEmbedder.load(path, encoder, probe=x[:5])
    np.testing.assert_allclose(loaded(x[:5]).mean.detach(), vectors[:5], atol=1e-6)
    guarded = tmp_path / "g.safetensors"
    Guard(vectors, y, precision=0.5).save(guarded)
    with pytest.warns(UncheckedModelWarning, match="probe="):
        Guard.load(guarded, other)
    with pytest.raises(InputError, match="probe"):
        Guard.load(guarded, other, probe=x[:5])
    assert len(Guard.load(guarded, encoder, probe=x[:5]).ask(x[:5])) == 5


def test_a_class_model_that_is_fitted_with_another_prior_ends_the_calibration(guard):
    index, queries = guard.index, drawn(8, 20)[0]
    rule, prior = index.guarantee(precision=0.8), index.class_model.prior
    index.learn_classes(*prior)
    assert rule(index.search(queries)).answered.any()
    index.learn_classes(1e-6, 0.05)
    assert index.calibration is None
    for ask in (lambda: index.ask(queries, rule), lambda: index.guarantee(precision=0.8)):
        with pytest.raises(NotFittedError, match="calibrate"):
            ask()
    for ask in (lambda: guard.rule, lambda: guard.ask(queries), lambda: guard.at(0.7)):
        with pytest.raises(NotFittedError, match=r"guard\.calibrate\(queries, labels\)"):
            ask()
    guard.calibrate(*drawn(2, 400))
    assert guard.ask(queries).answered.any()


def searching(x, lost=()):
    """A search function over x that never finds the rows ``lost``."""
    there = np.setdiff1d(np.arange(len(x)), lost)

    def find(v, k):
        return there[np.argsort(((v[:, None] - x[there]) ** 2).sum(-1), 1)[:, :k]]

    return find


@pytest.mark.parametrize("n_lost", [0, 10])
def test_a_search_that_finds_less_than_the_one_that_calibrated_is_told(n_lost, tmp_path):
    """Without two classes, a rule of .9 answers 67 % right."""
    x, y = drawn(1, 300)
    some, most = np.arange(n_lost), np.flatnonzero(y < 2)
    guard = Guard(x, y, held_out=drawn(2, 300), precision=0.5, search=searching(x, some))
    assert (guard.recall == 1) == (n_lost == 0)
    path = tmp_path / "guard.safetensors"
    guard.save(path)
    told = r"search finds 6\d% of the 10 nearest of stored vectors, and .* calibrated this index"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Guard.load(path, search=searching(x, some))
        assert again.recall == guard.recall
        guard.index.searched_by(searching(x, some))
        exact = Guard.load(path)
        exact.save(path)
        Guard.load(path, search=searching(x, some))
    for attach in (
        guard.index.searched_by,
        again.index.searched_by,
        lambda search: Guard.load(path, search=search),
    ):
        with pytest.warns(StaleCalibrationWarning, match=told):
            attach(searching(x, most))
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, rank_by="mean", progress=False)
    index.searched_by(searching(x, most))  # is not calibrated
    index.calibrate(*drawn(2, 300))
    with pytest.warns(StaleCalibrationWarning, match="this index 100%"):
        index.searched_by(searching(x, most))


def test_a_rule_of_scores_is_of_scores_alone(guard):
    g = np.random.default_rng(0)
    s = g.random(300)
    rule = calibrate_scores(s, s > 0.3 * g.random(300)).guarantee(precision=0.8)
    with pytest.raises(InputError, match="of scores"):
        rule(guard.index.search(drawn(8, 3)[0]))
