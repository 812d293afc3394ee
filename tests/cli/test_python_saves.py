"""What Python saved works in the command line, and the other way round."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.cli import main
from laplace_metric.cli._open_source import open_source
from laplace_metric.search import Index
from tests.cli.workshop import MODEL, own_model
from tests.saved_files import parts_of


@pytest.fixture
def saved(workplace):
    """An index of 300 photographs and its posterior, fitted to the same; the rest are ``new``."""
    photos, place = open_source(workplace / "photos"), workplace
    order = np.random.default_rng(0).permutation(600)
    items, held, new = order[:300].tolist(), order[300:450].tolist(), order[450:].tolist()
    x, y = photos.read(range(600)), np.array(photos.classes)
    codes = torch.from_numpy(np.array([int(name.split()[1]) for name in y]))
    embedder = LaplaceEmbedder(own_model())
    embedder.fit([(x[items], codes[items])], progress=False)
    embedder.save(place / "py_posterior")
    index = embedder.index(x[items], y[items], progress=False)
    index.calibrate(x[held], y[held])
    index.save(place / "py_index")
    for row in new:
        target = place / "new" / photos.ids[row]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "photos" / photos.ids[row], target)
    return place


def test_an_index_of_python_is_searched_and_measured(saved, capsys):
    given = ["py_index", "new", "--posterior", "py_posterior", *MODEL]
    assert main(["search", *given, "-k", "3", "--json", "r.json", "--quiet"]) == 0
    rows = json.loads((saved / "r.json").read_text())["results"]
    index = Index.load("py_index", LaplaceEmbedder.load("py_posterior", own_model()))
    new = open_source(saved / "new")
    expected = index.search(new.read(range(len(new))), 3)
    assert [row["id"] for row in rows] == expected.ids.reshape(-1).tolist()
    found = [row["match_probability"] for row in rows]
    np.testing.assert_allclose(found, expected.match_probability.reshape(-1), rtol=1e-3, atol=1e-6)
    assert main(["evaluate", *given, "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert "does not keep what it was built from" in shown.err
    truth = index.evaluate(new.read(range(len(new))), list(new.classes))
    assert json.loads(shown.out)["recall_at_1"] == pytest.approx(truth.recall_at_1)
    assert main(["report", *given, "--quiet"]) == 0
    assert "py_index: 300 items, ranked by mean" in (saved / "report.html").read_text()
    assert main(["search", *given, "--picture", "p.png"]) == 2
    assert "does not keep where they are" in capsys.readouterr().err


def test_a_guard_is_searched_as_an_index(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = load_digits(return_X_y=True)
    guard = Guard(x[:900].astype(np.float32), y[:900], precision=0.9)
    guard.save("guard")
    np.savez("q.npz", embeddings=x[900:950].astype(np.float32))
    assert main(["search", "guard", "q.npz", "--json", "-", "-k", "1", "--quiet"]) == 0
    found = [row["id"] for row in json.loads(capsys.readouterr().out)["results"]]
    assert found == guard.index.search(x[900:950].astype(np.float32), 1).ids[:, 0].tolist()


def test_what_is_missing_is_said(saved, capsys):
    assert main(["search", "py_index", "new", *MODEL]) == 2
    assert "without its posterior: give --posterior FILE" in capsys.readouterr().err
    assert main(["fit", "new", *MODEL, "--output", "other", "--quiet"]) == 0
    assert main(["search", "py_index", "new", "--posterior", "other", *MODEL]) == 2
    assert "was built with another embedder" in capsys.readouterr().err


def test_a_posterior_of_python_is_indexed_with_and_embeds(saved, capsys):
    build = ["index", "new", "--posterior", "py_posterior", *MODEL, "--holdout", "0.4", "--quiet"]
    assert main(build) == 0
    recipe = parts_of(saved / "index")["recipe"].content
    assert (recipe["kind"], recipe["read_options"]) == ("images", {"size": None, "channels": 1})
    assert main(["evaluate", "index", "new", "--trust-recipe", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 30
    assert main([*build[:1], "photos", *build[2:], "--output", "of_fitted"]) == 2
    assert "were in the fit" in capsys.readouterr().err
    embed = ["embed", "new", "--posterior", "py_posterior", *MODEL, "--output", "o.npz"]
    assert main([*embed, "--quiet"]) == 0
    expected = LaplaceEmbedder.load("py_posterior", own_model())
    x = open_source(saved / "new").read(range(150))
    with np.load("o.npz") as file:
        np.testing.assert_allclose(file["uncertainty"], expected(x).uncertainty, rtol=1e-4)


def test_numbers_as_labels_and_ids(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (np.eye(8)[y] + 0.4 * g.normal(size=(400, 8))).astype(np.float32)
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    embedder.save("p")
    index = embedder.index(x[100:200], y[100:200], progress=False)
    index.calibrate(x[200:300], y[200:300])
    index.save("i")
    np.savez("q.npz", embeddings=x[300:], labels=y[300:])
    np.savez("names.npz", embeddings=x[300:], labels=np.array(["a", "b"])[y[300:] % 2])
    evaluate = ["evaluate", "i", "q.npz", "--posterior", "p", "--json", "-"]
    assert main(evaluate) == 0
    truth = index.evaluate(x[300:], y[300:])
    assert json.loads(capsys.readouterr().out)["recall_at_1"] == pytest.approx(truth.recall_at_1)
    assert main(["search", "i", "q.npz", "--posterior", "p", "--output", "r.csv"]) == 0
    evaluate[2] = "names.npz"
    assert main(evaluate) == 2
    assert "the labels of the index are whole numbers" in capsys.readouterr().err


def test_an_index_of_the_command_line_goes_on_in_python(saved):
    assert main(["fit", "photos", *MODEL, "--holdout", "0.4", "--quiet"]) == 0
    build = ["index", "photos", "--posterior", "posterior", "--trust-recipe", "--quiet"]
    assert main(build) == 0
    embedder = LaplaceEmbedder.load("index", own_model())
    index = Index.load("index", embedder)
    index.add(torch.zeros(1, 1, 8, 8) + 0.5, ["class 1"], ["grey.png"], progress=False)
    index.save("more")
    embedder.save("its")
    asked = ["search", "more", "new", "--posterior", "its", *MODEL, "--json", "j", "--quiet"]
    assert main(asked) == 0
    assert json.loads((saved / "j").read_text())["queries"] == 150
