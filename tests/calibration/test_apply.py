"""``Calibration.apply`` says of arrays what ``Index.search`` says of its own hits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import Calibration, Rule, read_calibration, write_calibration
from laplace_metric.calibration.labels import _votes
from laplace_metric.calibration.scores._score_scale import gap
from laplace_metric.errors import (
    DistanceScaleWarning,
    FileFormatError,
    InputError,
    NonFiniteError,
    WriteError,
)
from laplace_metric.search import Index, SearchResult
from tests.saved_files import flip, of_version

CLOSE = {"rtol": 1e-6, "atol": 1e-6}
K = 20


@pytest.fixture(scope="module")
def points() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(700) % 12
    centres = 2 * torch.randn(12, 6, generator=g)
    return centres[y] + 1.2 * torch.randn(700, 6, generator=g), y


@pytest.fixture(scope="module")
def embedder(points) -> LaplaceEmbedder:
    x, y = points
    return LaplaceEmbedder.from_embeddings(x[:200], y[:200], prior_precision=20.0)


def built(embedder, points, portable=False, names=False, **how) -> Index:
    x, y = points
    labels = np.array([f"class {i}" for i in y]) if names else y
    index = embedder.index(x[:300], labels[:300], progress=False, **how)
    index.calibrate(x[300:600], labels[300:600], portable=portable)
    return index


def applied(index: Index, found: SearchResult, **changed: object):
    given = {"epistemic": found.epistemic}
    given |= {"labels": found.labels}
    given |= {"distances": found.distance}
    return index.calibration.apply(**{**given, **changed})


def same(verdict, found: SearchResult, k: int = K) -> None:
    pairs = {"match_probability": verdict.match_probability[:, :k], "p_value": verdict.p_value}
    pairs |= {"label_probability": verdict.label_probability, "ambiguity": verdict.ambiguity}
    for name, value in pairs.items():
        expected = np.asarray(getattr(found, name))
        np.testing.assert_allclose(np.asarray(value), expected, err_msg=name, **CLOSE)
    np.testing.assert_array_equal(np.asarray(verdict.unknown), np.asarray(found.unknown))
    np.testing.assert_array_equal(np.asarray(verdict.label), found.label)


def test_distances_of_predictive_vectors_are_not_portable(embedder, points):
    """Another engine holds the means, and would give other distances to the same score."""
    x, y = points
    index = embedder.index(x[:300], y[:300], rank_by="predictive", progress=False)
    with pytest.raises(InputError, match="portable=True.*'predictive'.*'mean'"):
        index.calibrate(x[300:600], y[300:600], portable=True)
    labelled = index.labelled_hits(x[300:600], y[300:600])
    with pytest.raises(InputError, match="portable=True"):
        index.learn(labelled, portable=True)
    cross = embedder.cross_index(x[:200], y[:200], portable=True, progress=False)
    assert cross.rank_by == "mean"


@pytest.mark.parametrize("rank_by", ["mean", "expected", "shared"])
@pytest.mark.parametrize("names", [False, True])
def test_the_same_hits_give_the_same(embedder, points, rank_by, names):
    index = built(embedder, points, portable=True, names=names, rank_by=rank_by)
    deep = index.search(points[0][600:], k=50 if rank_by == "shared" else K)
    same(applied(index, deep), deep, len(deep.ids[0]))
    assert deep.match_probability.std() > 0.05  # it says something


@pytest.mark.parametrize("features", ["distance", "portable"])
def test_whatever_it_looks_at(embedder, points, monkeypatch, features):
    """Each set of features on its own: nothing is forgotten that has a weight."""
    from laplace_metric.calibration.probability import _match_probability

    monkeypatch.setattr(_match_probability, "PORTABLE", features)
    index = built(embedder, points, portable=True)
    assert index.calibration.matcher.feature_set == features
    found = index.search(points[0][600:], k=K)
    same(applied(index, found), found)


def test_portable_needs_no_deviation(embedder, points):
    index = built(embedder, points, portable=True)
    assert "spread" not in index.calibration.looks_at
    assert "class_model" not in index.calibration.looks_at
    assert index.class_model is None
    found = index.search(points[0][600:], k=K)
    same(applied(index, found), found)


def test_what_only_the_index_knows_is_refused(embedder, points):
    x, y = points
    index = built(embedder, points)
    assert index.class_model is not None
    found = index.search(x[600:], k=K)
    with pytest.raises(InputError, match="class model.*index.*portable=True"):
        applied(index, found)
    index = embedder.index(x[:300], progress=False)
    matches = [(y[:300] == label).nonzero()[:, 0].tolist() for label in y[300:600]]
    index.calibrate(x[300:600], matches=matches)
    assert index.class_model is None
    found = index.search(x[600:], k=K)
    with pytest.raises(InputError, match="distance_sd is missing"):
        applied(index, found, labels=None)
    verdict = applied(index, found, labels=None, distance_sd=found.distance_sd)
    torch.testing.assert_close(verdict.match_probability, found.match_probability, **CLOSE)


def test_hits_that_others_found_teach_a_portable_calibration(embedder, points):
    x, y = points
    index = built(embedder, points)
    labelled = index.labelled_hits(x[300:600], y[300:600], 50)
    learnt = index.learn(labelled, 10, 0, portable=True)
    assert learnt.matcher.feature_set == "portable"
    assert index.calibration is learnt
    same_call = index.calibrate(x[300:600], y[300:600], portable=True, seed=0)
    assert np.array_equal(learnt.statistics, same_call.statistics)
    assert np.array_equal(learnt.probability, same_call.probability)
    assert index.learn(labelled, 10, 0).matcher.feature_set == "all"


def test_a_cross_fitted_index_can_be_portable(points, tmp_path):
    x, y = points
    embedder = LaplaceEmbedder.from_embeddings(x[:200], y[:200], prior_precision=20.0)
    index = embedder.cross_index(x[:200], y[:200], folds=3, portable=True, progress=False)
    assert index.calibration.matcher.feature_set == "portable"
    found = index.search(x[600:], k=K)
    same(applied(index, found), found)
    graph = index.calibration.export(tmp_path / "verdict.pt2", "torch")
    assert graph.metadata["cross_fitted"] == "true"
    usual = embedder.cross_index(x[:200], y[:200], folds=3, progress=False)
    assert usual.calibration.matcher.feature_set == "all"
    assert usual.class_model is not None


def test_the_hits_of_faiss(embedder, points):
    faiss = pytest.importorskip("faiss")
    index = built(embedder, points, portable=True)
    items, queries = embedder(points[0][:300]), embedder(points[0][600:])
    engine = faiss.IndexFlatL2(6)
    engine.add(items.mean.numpy())
    parts = [engine.search(row, K) for row in queries.mean.numpy()[:, None]]  # by differences
    squared, rows = (np.concatenate(x) for x in zip(*parts, strict=True))
    numbers = {"epistemic": queries.epistemic.numpy()}
    labels = points[1].numpy()[rows]
    verdict = index.calibration.apply(np.sqrt(squared), labels, **numbers)
    same(verdict, index.search(points[0][600:], k=K))
    assert isinstance(verdict.match_probability, np.ndarray)


def test_arrays_in_arrays_out_tensors_in_tensors_out(embedder, points):
    index = built(embedder, points, portable=True)
    found = index.search(points[0][600:], k=K)
    tensors = applied(index, found, labels=torch.from_numpy(found.labels))
    told = {
        name: value for name, value in vars(tensors).items() if name not in ("alpha", "calibration")
    }
    assert all(isinstance(x, Tensor) for x in told.values())
    lists = index.calibration.apply(
        found.distance.tolist(), found.labels.tolist(), epistemic=found.epistemic.tolist(),
    )  # fmt: skip
    assert all(isinstance(getattr(lists, name), np.ndarray) for name in told)
    for name, value in told.items():
        np.testing.assert_array_equal(getattr(lists, name), value.numpy(), err_msg=name)


def test_neighbours_that_are_missing(embedder, points):
    """As an approximate engine leaves places open: what stands there does not count."""
    index = built(embedder, points, portable=True)
    found = index.search(points[0][600:], k=25)
    whole = applied(index, found)
    distance, labels = found.distance.clone(), found.labels.copy()
    distance[:, 20:], labels[:, 20:] = torch.inf, 999
    given = {"epistemic": found.epistemic}
    part = index.calibration.apply(distance, labels, **given)
    torch.testing.assert_close(part.match_probability[:, :20], whole.match_probability[:, :20])
    assert not part.match_probability[:, 20:].any()
    np.testing.assert_array_equal(part.label, whole.label)


def test_with_matches_instead_of_labels(embedder, points):
    x, y = points
    index = embedder.index(x[:300], progress=False)
    matches = [(y[:300] == label).nonzero()[:, 0].tolist() for label in y[300:600]]
    index.calibrate(x[300:600], matches=matches, portable=True)
    found = index.search(x[600:], k=5)
    given = {"epistemic": found.epistemic}
    verdict = index.calibration.apply(found.distance, **given)
    torch.testing.assert_close(verdict.match_probability, found.match_probability, **CLOSE)
    torch.testing.assert_close(verdict.p_value, found.p_value, **CLOSE)
    assert verdict.label is None
    assert verdict.ambiguity is None


def test_alpha(embedder, points):
    index = built(embedder, points, portable=True)
    found = index.search(points[0][600:], k=K, alpha=0.4)
    verdict = applied(index, found, alpha=0.4)
    assert 0 < int(verdict.unknown.sum()) < len(found)
    assert torch.equal(verdict.unknown, found.unknown)
    for of in ("match", "label"):
        for rule in (Rule.at(0.2, of, 0.4), index.guarantee(recall=0.5, of=of, alpha=0.1)):
            ours, theirs = rule(verdict), rule(found)
            assert ours.label.tolist() == theirs.label.tolist()
            assert ours.reason.tolist() == theirs.reason.tolist()
            np.testing.assert_allclose(ours.probability, theirs.probability, atol=1e-6)
    assert bool((verdict.unknown & (verdict.match_probability[:, 0] >= 0.2)).any())


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"distances": torch.ones(3)}, InputError, "distances has shape"),
        ({"distances": -torch.ones(2, K)}, InputError, r"sqrt\(2 - 2 s\)"),
        ({"distances": torch.full((2, K), torch.nan)}, NonFiniteError, "distances holds NaN"),
        ({"labels": None}, InputError, "labels are missing"),
        ({"labels": np.ones((2, 3), int)}, InputError, "labels are int64 of shape"),
        ({"labels": np.ones((2, K))}, InputError, "labels are float64"),
        ({"epistemic": torch.ones(3)}, InputError, r"epistemic has shape \(3,\): pass \[2\]"),
        ({"epistemic": torch.tensor([1, torch.inf])}, NonFiniteError, "epistemic holds"),
        ({"distance_sd": torch.ones(2, 3)}, InputError, "distance_sd is"),
        ({"alpha": 2.0}, InputError, "alpha"),
        (
            {"distances": torch.ones(2, 3), "labels": np.ones((2, 3), int), "distance_sd": None},
            InputError,
            "labels of 20 vote",
        ),
    ],
)
def test_refusals(embedder, points, changed, error, message):
    calibration = built(embedder, points, portable=True).calibration
    given = {"distances": torch.ones(2, K), "labels": np.ones((2, K), int)}
    given |= {"epistemic": torch.ones(2)}
    with pytest.raises(error, match=message):
        calibration.apply(**{**given, **changed})


def test_a_file_of_numbers(embedder, points, tmp_path):
    index, path = built(embedder, points, portable=True), tmp_path / "calibration.safetensors"
    write_calibration(index.calibration, path)
    again = read_calibration(path)
    found = index.search(points[0][600:], k=K)
    given = {"epistemic": found.epistemic}
    same(again.apply(found.distance, found.labels, **given), found)
    thresholds = [c.guarantee(precision=0.5) for c in (again, index.calibration)]
    assert thresholds[0] == thresholds[1]


def test_files_that_are_not_ours(embedder, points, tmp_path):
    path = tmp_path / "calibration.safetensors"
    write_calibration(built(embedder, points).calibration, path)
    whole = path.read_bytes()
    for content, message in {
        b"{}": "not a safetensors file. Version 0.3 saved JSON",
        b"no file of ours": "not a safetensors file",
        b"": "not a safetensors file",
        whole[:-9]: "header names",
    }.items():
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            read_calibration(path)
    path.write_bytes(whole)
    flip(path, "calibration/matcher.score.weights")
    with pytest.raises(FileFormatError, match="not have.*sha256"):
        read_calibration(path)
    path.write_bytes(whole)
    of_version(path, "calibration", 99)
    with pytest.raises(FileFormatError, match="version 99.*reads 8"):
        read_calibration(path)
    with pytest.raises(FileFormatError, match=r"missing\.safetensors.*not exist"):
        read_calibration(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match="pass index.calibration"):
        write_calibration(None, path)
    with pytest.raises(WriteError):
        write_calibration(built(embedder, points).calibration, path / "b.safetensors")


def test_it_is_pure(embedder, points):
    index = built(embedder, points, portable=True)
    found = index.search(points[0][600:], k=K)
    distance, labels = found.distance.numpy(), found.labels
    before = distance.copy(), labels.copy()
    assert isinstance(index.calibration, Calibration)
    one, two = applied(index, found), applied(index, found)
    assert torch.equal(one.match_probability, two.match_probability)
    assert np.array_equal(distance, before[0])
    assert np.array_equal(labels, before[1])


def test_neighbours_that_agree_leave_no_rank_to_rounding():
    """1e-16 nats is what is left of log 1; it must not make one query stranger than another."""
    distance = np.sort(np.random.default_rng(0).random((200, 20)), 1)
    votes = _votes.LabelVotes.of(distance, np.zeros((200, 20), dtype=np.int64))
    assert (votes.ambiguity == 0).all()


def squares_of(found, n):
    return {
        "distances": found.distance[:n] ** 2,
        "labels": found.labels[:n],
        "epistemic": found.epistemic[:n],
    }


def test_squares_and_other_units_are_told(embedder, points):
    index = built(embedder, points, portable=True)
    found = index.search(points[0][600:], k=K)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied(index, found)  # as they are
    with warnings.catch_warnings():
        warnings.simplefilter("error", DistanceScaleWarning)
        index.calibration.apply(**squares_of(found, 9))  # too few to tell
    with pytest.warns(DistanceScaleWarning, match="their roots fit"):
        index.calibration.apply(**squares_of(found, 10))
    with pytest.warns(DistanceScaleWarning, match="their roots.*FAISS.*return sq"):
        applied(index, found, distances=found.distance**2)
    with pytest.warns(DistanceScaleWarning, match="their roots fit"):
        applied(
            index,
            found,
            distances=(found.distance[:, :1] + found.distance) ** 2 / 4,
        )
    cosines = 1 - found.distance**2 / found.distance.max() ** 2 / 2
    with pytest.raises(InputError, match="fall.*neighbour to neighbour"):
        applied(index, found, distances=cosines)
    one = {"labels": found.labels[:1], "distances": cosines[:1]}
    one |= {"epistemic": found.epistemic[:1]}
    with pytest.raises(InputError, match="sqrt"):
        index.calibration.apply(**one)
    with pytest.warns(DistanceScaleWarning, match="the same units"):
        applied(index, found, distances=found.distance * 1000)


@pytest.mark.parametrize("seed", range(6))
def test_the_gap_of_two_samples_is_that_of_scipy(seed):
    g = np.random.default_rng(seed)
    one, other = g.normal(size=40).round(1), g.normal(0.5, 2, size=23).round(1)  # with ties
    ours = gap(one, other)
    assert ours == pytest.approx(ks_2samp(one, other).statistic, abs=1e-12)
    swapped = gap(other, one)
    assert swapped == pytest.approx(ours, abs=1e-12)
