"""One split for all commands: what the fit left out calibrates and judges, nothing else does."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import pytest

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli._model_recipe import ModelRecipe
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._records import split_rows
from laplace_metric.io import SavedFile
from laplace_metric.search import Index
from tests.cli.workshop import trusting as main

INDEX = ["index", "items.npz", "--posterior", "posterior"]


def write(name, n, seed, moved=0.0):
    g = np.random.default_rng(seed)
    y = np.arange(n) % 4
    x = np.eye(8)[y] + 0.5 * g.normal(size=(n, 8))
    np.savez(name, embeddings=x + moved, labels=y, ids=[f"{name} {i}" for i in range(n)])


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Embeddings of four classes, and a posterior of 60 % of the items."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("items", "others")):
        write(f"{name}.npz", 400, seed)
    assert main(["fit", "items.npz", "--holdout", "0.4", "--seed", "3", "--quiet"]) == 0
    return tmp_path


def test_all_commands_follow_the_split_of_the_fit(arrays, capsys):
    fitted, first, second = split_rows(400, 0.4, 3)
    names = np.array([f"items.npz {i}" for i in range(400)])
    assert [len(rows) for rows in (fitted, first, second)] == [240, 80, 80]
    assert main(INDEX) == 0
    says = capsys.readouterr()
    assert "the fit kept 40% of items.npz apart: half of that calibrates" in says.err
    assert "calibrated with 80 held-out items" in says.out
    index = Index.load("index", LaplaceEmbedder.load("posterior"))
    assert index.ids.tolist() == names[fitted].tolist()
    for command in (["evaluate"], ["report", "--output", "r.html"]):
        assert main([command[0], "index", "items.npz", *command[1:], "--json", "-"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["queries"] == 80
        assert "only the 80 items are queries" in shown.err
    x, y = (np.load("items.npz")[name] for name in ("embeddings", "labels"))
    own = LaplaceEmbedder.from_embeddings(x[fitted], y[fitted])
    saved = LaplaceEmbedder.load("posterior")
    assert saved.fitted_.n_points == 240
    np.testing.assert_allclose(saved(x).uncertainty, own(x).uncertainty, rtol=1e-4)


def test_the_first_half_calibrates_and_the_second_judges(arrays):
    source = open_source(arrays / "items.npz")
    parts = ModelRecipe.read(SavedFile(arrays / "posterior")).left_out(
        source, Namespace(allow_fitted=False)
    )
    for part, rows in zip(parts, split_rows(400, 0.4, 3)[1:], strict=True):
        assert part.ids == tuple(f"items.npz {row}" for row in rows)
    assert (
        ModelRecipe.read(SavedFile(arrays / "posterior")).left_out(source.take([1]), Namespace())
        is None
    )


def test_fit_says_what_it_kept_apart(arrays, capsys):
    assert main(["fit", "items.npz", "--holdout", "0.25", "--output", "p2"]) == 0
    says = capsys.readouterr().out
    assert "fitted 300 items of 4 classes" in says
    assert "kept 100 items apart, which index, evaluate and report use" in says
    assert main(["fit", "items.npz", "--output", "p3", "--json", "-"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["items"], numbers["held_out"]) == (400, 0)


def test_other_indexes_use_what_the_fit_left_out(arrays, capsys):
    """To calibrate with, and to ask, never the same ones."""
    build = ["index", "others.npz", "--posterior", "posterior", "--calibrate", "items.npz"]
    assert main(build) == 0
    assert "calibrated with 80 held-out items" in capsys.readouterr().out
    assert main(["evaluate", "index", "items.npz", "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["queries"] == 80
    assert "items.npz: only the 80 items that the fit kept for this" in shown.err
    assert main(["index", "others.npz", "--posterior", "posterior", "--overwrite", "--quiet"]) == 0
    assert main([*INDEX, "--calibrate", "others.npz", "--overwrite"]) == 0
    assert "indexed 400 items" in capsys.readouterr().out


def test_a_holdout_of_the_index_that_is_not_that_of_the_fit(arrays, capsys):
    assert main([*INDEX, "--holdout", "0.3", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "laplace-metric: error: --holdout 0.3 --seed 0: the fit kept 0.4 of items.npz apart, with "
        "seed 3. Leave both out, and index follows.\n"
    )
    assert main([*INDEX, "--holdout", "0.4", "--seed", "3", "--quiet"]) == 0
    write("items.npz", 400, 9)
    assert main([*INDEX, "--overwrite"]) == 0
    says = capsys.readouterr().err
    assert "items.npz has changed since the fit: what the fit left out is not known" in says
    assert "not calibrated: no match probabilities. Calibrating takes at least 20" in says


REFUSED = (
    "laplace-metric: error: items.npz is what the posterior was fitted to, all of it: the "
    "posterior is surer of these items than of new ones, so that nothing learnt or measured with "
    "them holds. Give other data; or fit with --holdout 0.4, and index, evaluate and report follow "
    "its split; or --allow-fitted, to go on all the same.\n"
)


def test_a_fit_to_everything_leaves_nothing_to_calibrate_with(arrays, capsys):
    assert main(["fit", "items.npz", "--overwrite", "--quiet"]) == 0
    elsewhere = ["index", "others.npz", "--posterior", "posterior"]
    for words in ([*INDEX, "--holdout", "0.4"], [*elsewhere, "--calibrate", "items.npz"]):
        assert main([*words, "--overwrite", "--quiet"]) == 2
        assert capsys.readouterr().err == REFUSED
        assert main([*words, "--allow-fitted", "--overwrite"]) == 0
        assert "100% of the queries" in capsys.readouterr().err
    assert main([*elsewhere, "--overwrite", "--quiet"]) == 0
    assert main(["evaluate", "index", "items.npz", "--quiet"]) == 2
    assert capsys.readouterr().err == REFUSED
    assert main(["evaluate", "index", "items.npz", "--allow-fitted", "--quiet"]) == 0


def test_items_of_the_fit_are_known_in_another_file(arrays, capsys):
    with np.load("items.npz") as found:
        rows = [*split_rows(400, 0.4, 3)[0][:50], *split_rows(400, 0.4, 3)[2]]
        np.savez("copy.npz", embeddings=found["embeddings"][rows], labels=found["labels"][rows])
    assert main([*INDEX, "--quiet"]) == 0
    for command in ("evaluate", "report"):
        assert main([command, "index", "copy.npz", "--quiet"]) == 2
        assert capsys.readouterr().err == (
            "laplace-metric: error: copy.npz: 38% of the queries (50 of 130) were in the fit of "
            "the posterior, which is surer of them than of anything new: probabilities, thresholds "
            "and what is measured here will not hold on new queries. Keep them out of the fit. "
            "Give other data; or fit with --holdout 0.4, and index, evaluate and report follow its "
            "split; or --allow-fitted, to go on all the same.\n"
        )
        assert main([command, "index", "copy.npz", "--allow-fitted"]) == 0
        assert "note: 38% of the queries" in capsys.readouterr().err
    build = ["index", "others.npz", "--posterior", "posterior", "--calibrate", "copy.npz"]
    assert main([*build, "--overwrite", "--quiet"]) == 2
    assert "copy.npz: 38% of the queries" in capsys.readouterr().err


def test_queries_that_are_near_copies_of_each_other_are_a_note(arrays, capsys):
    """They were in no fit: --allow-fitted and another split would not help."""
    draw = np.random.default_rng(5)
    y = np.repeat(np.arange(40) % 4, 5)
    x = np.repeat(np.eye(8)[np.arange(40) % 4] + 0.5 * draw.normal(size=(40, 8)), 5, axis=0)
    np.savez("bursts.npz", embeddings=x + 1e-3 * draw.normal(size=x.shape), labels=y)
    build = ["index", "others.npz", "--posterior", "posterior", "--calibrate", "bursts.npz"]
    assert main([*build, "--overwrite"]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "near-copies" in line]
    assert note.startswith("note: 100% of the queries are near-copies")
    assert "--allow-fitted" not in note
