"""Queries that the index knows already, and other ways to look better than it is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.workshop import refused, write_vectors
from tests.cli.workshop import trusting as main


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Embeddings of four classes: of the index, to calibrate with, to ask."""
    monkeypatch.chdir(tmp_path)
    for seed, (name, n) in enumerate((("items", 400), ("held", 200), ("asked", 100))):
        write_vectors(name, n, seed)
    assert main(["fit", "items.npz", "--quiet"]) == 0
    return tmp_path


def test_what_calibrated_an_index_does_not_judge_it(arrays, capsys):
    words = ["index", "items.npz", "--posterior", "posterior", "--calibrate", "held.npz", "--quiet"]
    assert main(words) == 0
    assert main(["evaluate", "index", "asked.npz", "--quiet"]) == 0
    assert "held.npz calibrated the index" in refused(["evaluate", "index", "held.npz"], capsys)


def test_data_that_changed_since_are_refused(arrays, capsys):
    words = ["index", "items.npz", "--posterior", "posterior", "--holdout", "0.5"]
    words += ["--allow-fitted", "--quiet"]
    assert main(words) == 0
    assert main(["evaluate", "index", "items.npz", "--allow-fitted", "--quiet"]) == 0
    with np.load("items.npz") as found:
        x, y = found["embeddings"], found["labels"]
    x[7] += 1.0
    np.savez("items.npz", embeddings=x, labels=y)
    assert main(["evaluate", "index", "items.npz", "--quiet"]) == 2
    assert "items.npz has changed since the index was built" in capsys.readouterr().err


def test_labels_that_look_like_markup_are_shown_as_they_are(arrays, capsys):
    write_vectors("named", 400, names=[f"[/b] class {y}" for y in range(4)])
    assert main(["index", "named.npz", "--posterior", "posterior", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["search", "index", "asked.npz", "-k", "1"]) == 0
    assert "[/b]" in capsys.readouterr().out
