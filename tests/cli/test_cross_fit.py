"""``index --cross-fit``: all items are in the index, and none is held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index
from tests.cli.workshop import trusting as main

DATA = ["x.npy", "--labels", "y.npy"]
BUILD = ["index", *DATA, "--posterior", "posterior"]


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Two hundred embeddings of five classes, and as many new ones."""
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    y = np.arange(400) % 5
    x = np.eye(8)[y] + 0.4 * g.normal(size=(400, 8))
    for name, rows in (("", slice(200)), ("new-", slice(200, 400))):
        np.save(f"{name}x.npy", x[rows])
        np.save(f"{name}y.npy", y[rows])
    return x, y


def test_cross_fitting_is_that_of_the_library(arrays, capsys):
    x, y = arrays
    assert main(["fit", *DATA, "--quiet"]) == 0
    assert main([*BUILD, "--cross-fit", "4", "--seed", "3", "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["items"], shown["calibrated_with"]) == (200, 200)
    embedder = LaplaceEmbedder.load("index")
    saved = Index.load("index", embedder)
    names = [str(label) for label in y[:200]]
    own = embedder.cross_index(x[:200], names, folds=4, seed=3, progress=False)
    torch.testing.assert_close(
        saved.calibration.label_probability, own.calibration.label_probability, atol=1e-4, rtol=0
    )
    new = ["new-x.npy", "--labels", "new-y.npy"]
    assert main(["evaluate", "index", *new, "--json", "-", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["queries"] == 200
    gap = report["mean_probability"] - report["answers_right"]
    assert abs(gap) < 3 * 0.5 / 200**0.5
    assert main(["evaluate", "index", *DATA, "--quiet"]) == 2
    assert "items of the index themselves" in capsys.readouterr().err


def test_what_does_not_go_together(arrays, capsys):
    assert main(["fit", *DATA, "--holdout", "0.4", "--quiet"]) == 0
    assert main([*BUILD, "--cross-fit", "5", "--quiet"]) == 2
    assert "the fit kept 0.4 of x.npy apart" in capsys.readouterr().err
    assert main([*BUILD, "--cross-fit", "5", "--calibrate", "new-x.npy", "--quiet"]) == 2
    assert "--calibrate and --cross-fit: give one of them" in capsys.readouterr().err
    new = ["index", "new-x.npy", "--labels", "new-y.npy", "--posterior", "posterior"]
    assert main([*new, "--cross-fit", "5", "--quiet"]) == 2
    assert "100% of the items were not in the fit" in capsys.readouterr().err
    assert main([*BUILD, "--cross-fit", "1", "--quiet"]) == 2
    assert "--cross-fit 1: give 0 for none, or 2 parts" in capsys.readouterr().err


def test_a_small_collection_calibrates_itself_unless_it_is_told_not_to(arrays, capsys, monkeypatch):
    assert main(["fit", *DATA, "--quiet"]) == 0
    assert main([*BUILD, "--json", "small.json"]) == 0
    assert "200 items calibrate themselves (--cross-fit 5)" in capsys.readouterr().err
    asked = [*BUILD, "--cross-fit", "5", "--output", "asked", "--json", "asked.json"]
    assert main([*asked, "--quiet"]) == 0
    small, same = (json.loads(Path(f"{name}.json").read_text()) for name in ("small", "asked"))
    assert small["calibrated_with"] == same["calibrated_with"] == 200
    off = [*BUILD, "--cross-fit", "0", "--output", "off"]
    assert main([*off, "--quiet"]) == 0
    embedder = LaplaceEmbedder.load("off")
    assert Index.load("off", embedder).calibration is None
    monkeypatch.setattr("laplace_metric.cli._index.SMALL", 199)
    assert main([*BUILD, "--output", "large", "--quiet"]) == 0
    assert Index.load("large", embedder).calibration is None


def test_what_cannot_calibrate_itself_is_indexed_all_the_same(arrays):
    np.save("y.npy", np.arange(200) // 2)  # classes of two
    assert main(["fit", *DATA, "--quiet"]) == 0
    assert main([*BUILD, "--quiet"]) == 0
    assert Index.load("index", LaplaceEmbedder.load("index")).calibration is None
