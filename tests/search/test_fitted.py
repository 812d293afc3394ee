"""Rows that were fitted are known again, and nothing else is; who calibrates with them is told."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, FittedQueriesWarning
from laplace_metric.models import _feature_store
from laplace_metric.models._fingerprints import in_fit, row_fingerprints
from tests.saved_files import rewrite

CLASSES = torch.randn(6, 12, generator=torch.Generator().manual_seed(7))


def draw(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    return CLASSES[y] + 0.7 * torch.randn(n, 12, generator=g), y


def caught(call):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in record if w.category is FittedQueriesWarning]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)
    )


@pytest.fixture(scope="module")
def embedder(model):
    x, y = draw(300, 0)
    return LaplaceEmbedder(model).fit([(x[:170], y[:170]), (x[170:], y[170:])], progress=False)


def near_zero(n, g):
    """Fingerprints [n] whose bytes are around 0, 3 and 6, modulo 256."""
    centres, moves = g.integers(0, 3, (n, 8)) * 3, g.integers(-1, 2, (n, 8))
    return (centres + moves).astype(np.uint8).view("<u8").reshape(-1).astype(np.uint64)


def test_the_look_up_is_that_of_every_pair():
    g = np.random.default_rng(0)
    known, rows = np.unique(near_zero(3000, g)), near_zero(700, g)
    rows[:50] = known[:50]
    a, b = (k.astype("<u8").view(np.uint8).reshape(-1, 8).astype(int) for k in (rows, known))
    apart = np.abs(a[:, None] - b[None])
    expected = (np.minimum(apart, 256 - apart) <= 1).all(2).any(1)
    assert 100 < expected.sum() < 600
    assert np.array_equal(in_fit(known, rows), expected)
    assert in_fit(known[:0], rows).sum() == 0


@pytest.mark.parametrize("size", [1, 7, 300])
def test_batches_types_and_ways_to_fit_do_not_matter(size, model, embedder, tmp_path):
    x, y = draw(300, 0)
    batches = list(zip(x.split(size), y.split(size), strict=True))
    known = embedder.fitted_.fingerprints
    assert known.dtype == np.uint64
    assert len(known) == 300
    assert (known[1:] > known[:-1]).all()
    for how in (
        {},
        {"memory_bytes": 1},
        {"checkpoint_dir": tmp_path},
        {"checkpoint_dir": tmp_path},
    ):
        other = LaplaceEmbedder(model).fit(batches, progress=False, **how).fitted_.fingerprints
        assert in_fit(known, other).all()
        assert len(other) == 300
    h = torch.cat([embedder.activations(part).features for part, _ in batches])
    assert in_fit(known, row_fingerprints(h.double())).all()
    assert not in_fit(
        known, row_fingerprints(embedder.activations(draw(2000, 1)[0]).features)
    ).any()


def test_different_rows_have_different_fingerprints():
    h = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0))
    for rows in (h, h.relu(), h + 100, nn.functional.normalize(h, dim=1), (h > 1).float()):
        known = np.sort(row_fingerprints(rows[:18_000]))
        assert in_fit(known, row_fingerprints(rows[18_000:])).mean() < 1e-3
        assert in_fit(known, row_fingerprints(rows[:100] * (1 + 1e-6))).all()
        assert not in_fit(known, row_fingerprints(rows[:100] * 2)).any()


@pytest.mark.parametrize("n_fitted", [0, 2, 3, 50, 200])
def test_calibrate_and_evaluate_tell_the_share(embedder, n_fitted):
    (old, old_y), (new, new_y) = draw(300, 0), draw(200, 2)
    index = embedder.index(*draw(200, 3), progress=False)
    x = torch.cat([old[:n_fitted], new[n_fitted:]]).numpy()
    y = torch.cat([old_y[:n_fitted], new_y[n_fitted:]])
    told = caught(lambda: index.calibrate(x, y))
    assert caught(lambda: index.evaluate(x, y)) == told
    if n_fitted <= 2:  # one in a hundred
        assert told == []
        return
    percent = {3: "2%", 50: "25%", 200: "100%"}[n_fitted]
    assert told == [
        f"{percent} of the queries ({n_fitted} of 200) were in the fit of the posterior, which is "
        "surer of them than of anything new: probabilities, thresholds and what is measured here "
        "will not hold on new queries. Keep them out of the fit."
    ]


def test_a_saved_posterior_knows_its_rows(embedder, model, tmp_path):
    embedder.save(tmp_path / "saved")
    known = LaplaceEmbedder.load(tmp_path / "saved", model).fitted_.fingerprints
    assert np.array_equal(known, embedder.fitted_.fingerprints)
    embedder.tune_prior()
    assert embedder.fitted_.fingerprints is not None


def test_streams_and_very_many_rows_have_none(model, tmp_path, monkeypatch):
    x, y = draw(300, 0)
    batches = list(zip(x.split(100), y.split(100), strict=True))
    by_batch = LaplaceEmbedder(model, pairs="batch", structure="diag").fit(batches, progress=False)
    assert by_batch.fitted_.fingerprints is None
    monkeypatch.setattr(_feature_store, "FINGERPRINTS", 299)
    many = LaplaceEmbedder(model).fit(batches, progress=False)
    assert many.fitted_.fingerprints is None
    many.save(tmp_path / "saved")
    again = LaplaceEmbedder.load(tmp_path / "saved", model)
    assert again.fitted_.fingerprints is None
    assert caught(lambda: again.index(x, y, progress=False).evaluate(x, y)) == []


def test_fingerprints_of_another_type_are_damage(embedder, model, tmp_path):
    embedder.save(tmp_path / "saved")
    rewrite(tmp_path / "saved", "posterior", lambda _, a: a.update(fingerprints=a["eigenvalues"]))
    with pytest.raises(FileFormatError, match="fingerprints.*float64, not uint64"):
        LaplaceEmbedder.load(tmp_path / "saved", model)
