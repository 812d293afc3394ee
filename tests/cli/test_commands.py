"""Every command from end to end; what its numbers are is computed again, independently."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._source import ReadOptions
from laplace_metric.io import SavedFile
from laplace_metric.search import Index
from tests.cli.workshop import FIT, LETTERS, own_model
from tests.cli.workshop import trusting as main
from tests.saved_files import parts_of

POSTERIOR = ["--posterior", "posterior"]


@pytest.fixture
def fitted(workplace):
    assert main([*FIT, "--quiet"]) == 0
    return workplace


@pytest.fixture
def indexed(workplace):
    assert main([*FIT, "--holdout", "0.4", "--quiet"]) == 0
    assert main(["index", "photos", "--posterior", "posterior", "--quiet"]) == 0
    return workplace


def test_fit_is_the_fit_of_the_library(workplace, capsys):
    assert main([*FIT, "--structure", "diag", "--prior-precision", "3", "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["items"], shown["classes"], shown["structure"]) == (600, 10, "diag")
    loader = open_source(workplace / "photos").batches(600, labelled=True)
    own = LaplaceEmbedder(own_model(), structure="diag", prior_precision=3.0)
    own.fit(loader, progress=False)
    saved = LaplaceEmbedder.load("posterior", own_model())
    x = next(iter(loader))[0]
    torch.testing.assert_close(saved(x).uncertainty, own(x).uncertainty, rtol=1e-4, atol=0)
    assert parts_of(workplace / "posterior").keys() == {"posterior", "recipe"}


def test_fit_writes_the_activations_of_an_item_once(workplace):
    """Into its checkpoint, from which it goes on; a posterior has a sample of them, and no more."""
    assert main([*FIT, "--checkpoint", "parts", "--quiet"]) == 0
    size = 600 * 64 * 4  # bytes of what enters the head
    others = (path for path in workplace.rglob("*") if "posterior" not in path.parts)
    large = [path for path in others if path.is_file() and path.stat().st_size >= size]
    assert [(path.name, path.stat().st_size) for path in large] == [("features.bin", size)]


def test_the_prior_can_be_chosen(fitted, capsys):
    more = ["--output", "p2", "--optimize-prior", "--json", "-"]
    assert main([*FIT, *more]) == 0
    chosen = json.loads(capsys.readouterr().out)["prior_precision"]
    again = LaplaceEmbedder.load("posterior", own_model())
    assert chosen == pytest.approx(again.tune_prior(), rel=1e-4)


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_embed_writes_what_can_be_read_again(ending, fitted):
    out = fitted / f"out.{ending}"
    arguments = ["embed", "photos", "--posterior", "posterior", "--output", out.name, "--quiet"]
    assert main(arguments) == 0
    found, photos = open_source(out), open_source(fitted / "photos")
    assert (found.ids, found.classes) == (photos.ids, photos.classes)
    expected = LaplaceEmbedder.load("posterior", own_model())(photos.read(range(600)))
    torch.testing.assert_close(found.read(range(600)), expected.mean, rtol=1e-4, atol=1e-5)
    if ending == "npz":
        with np.load(out) as file:
            np.testing.assert_allclose(file["uncertainty"], expected.uncertainty, rtol=1e-4)
    assert not list(fitted.glob(".*"))
    assert main(arguments) == 2
    assert main([*arguments, "--overwrite"]) == 0


def test_an_interrupted_fit_leaves_no_output_and_goes_on(workplace, monkeypatch, capsys):
    from laplace_metric.distributed._fit_on_disk import Checkpoint
    from laplace_metric.laplace.fit import _points as fitting

    monkeypatch.setattr(Checkpoint, "due", lambda self: True)
    capture, seen = fitting.capture, []

    def counted(model, head, inputs):
        seen.append(len(inputs))
        if len(seen) == 6:
            raise KeyboardInterrupt
        return capture(model, head, inputs)

    monkeypatch.setattr(fitting, "capture", counted)
    assert main([*FIT, "--quiet"]) == 130
    assert not (workplace / "posterior").exists()
    assert (workplace / ".posterior.checkpoint").exists()
    assert main([*FIT, "--quiet"]) == 0
    assert sum(seen[6:]) == 600 - 5 * 64  # six were kept; one again, to see that it is the same
    assert not (workplace / ".posterior.checkpoint").exists()
    monkeypatch.setattr(fitting, "capture", capture)
    assert main([*FIT, "--quiet", "--output", "whole"]) == 0
    one, two = (LaplaceEmbedder.load(name, own_model()) for name in ("posterior", "whole"))
    assert torch.equal(one.hessian_.eigenvalues, two.hessian_.eigenvalues)
    assert capsys.readouterr().err == (
        "laplace-metric: interrupted. The same command goes on from where it was\n"
    )


def test_search_is_the_search_of_the_library(indexed, capsys):
    assert main(["search", "index", "photos", "-k", "4", "--output", "r.csv", "--json", "j"]) == 0
    printed = capsys.readouterr().out
    assert "the first 10 of 600 queries" in printed
    rows = list(csv.DictReader((indexed / "r.csv").open()))
    index = Index.load("index", LaplaceEmbedder.load("index", own_model()))
    photos = open_source(indexed / "photos")
    expected = index.search(photos.read(range(600)), 4)
    assert [row["query"] for row in rows] == [name for name in photos.ids for _ in range(4)]
    assert [row["id"] for row in rows] == expected.ids.reshape(-1).tolist()
    probability = np.array([float(row["match_probability"]) for row in rows])
    np.testing.assert_allclose(
        probability, expected.match_probability.reshape(-1), rtol=1e-3, atol=1e-6
    )
    assert json.loads((indexed / "j").read_text())["results"][3]["rank"] == 4
    assert "results" not in printed


def ranked_by(index: Index, embedder: LaplaceEmbedder, x: Tensor) -> Tensor:
    """Unit vectors that an index of directions compares, by what it says of its ranking."""
    if index.rank_by == "mean":
        return embedder(x).mean
    temperature = index.ranking.factor * embedder.fitted_.predictive_posterior.temperature
    v, n = embedder.predictive_vectors(x, temperature=temperature), embedder.head_.n_outputs
    kept = torch.cat([torch.arange(n), n + index.ranking.columns])
    return nn.functional.normalize(v[:, kept], dim=1)


def test_evaluate_measures_what_was_kept_apart(indexed, capsys):
    assert main(["evaluate", "index", "photos", "--json", "-"]) == 0
    shown = capsys.readouterr()
    numbers = json.loads(shown.out)
    assert "only the 120 items are queries" in shown.err
    photos = open_source(indexed / "photos")
    from laplace_metric.cli._gallery import Origin

    items, _, rows = Origin.read(SavedFile(indexed / "index")).split(600)
    embedder = LaplaceEmbedder.load("index", own_model())
    index = Index.load("index", embedder)
    found = index.search(photos.read(rows), 1)
    seen = ranked_by(index, embedder, photos.read(range(600)))
    nearest = (seen[rows] @ seen[items].T).argmax(1)
    truth = np.array(photos.classes)
    right = truth[rows] == truth[np.array(items)[nearest.numpy()]]
    assert numbers["queries"] == 120
    assert numbers["recall_at_1"] == pytest.approx(right.mean())
    right, p = truth[rows] == found.label, found.label_probability.numpy()
    assert numbers["answers_right"] == pytest.approx(right.mean())
    assert numbers["brier"] == pytest.approx(brier_score_loss(right, p), abs=1e-4)
    distance = numbers["r_auroc"]["distance alone"]
    assert distance == pytest.approx(roc_auc_score(~right, found.distance[:, 0]), abs=2e-3)
    certain = numbers["r_auroc"]["label probability"]
    assert certain == pytest.approx(roc_auc_score(~right, 1 - p), abs=2e-3)
    sets = index.retrieval_sets(photos.read(rows), alpha=0.1)
    assert numbers["retrieval_sets"]["mean_size"] == pytest.approx(float(sets.sizes.float().mean()))
    of = dict(zip(photos.ids, photos.classes, strict=True))
    hit = [any(of[i] == truth[row] for i in sets[q]) for q, row in enumerate(rows)]
    assert numbers["retrieval_sets"]["coverage"] == pytest.approx(np.mean(hit))
    assert numbers["unknown"]["of_known"] < 0.2


def test_promises_are_kept_where_there_are_enough_queries(workplace, digits, capsys):
    from tests.cli.workshop import write_images

    images, labels = digits
    write_images(workplace / "more", images[600:1200], labels[600:1200])
    write_images(workplace / "last", images[1200:], labels[1200:])
    assert main([*FIT, "--quiet"]) == 0
    build = ["index", "photos", "--posterior", "posterior", "--calibrate", "more", "--json", "-"]
    assert main(build) == 0
    value = json.loads(capsys.readouterr().out)["thresholds"]["0.9"]
    assert main(["evaluate", "index", "last", "--open-set", "more", "--json", "-"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    promise = numbers["guarantees"][0]
    assert promise["threshold"] == value
    index = Index.load("index", LaplaceEmbedder.load("index", own_model()))
    last = open_source(workplace / "last")
    found = index.search(last.read(range(len(last))), 1)
    accepted = found.label_probability.numpy() >= value
    accepted &= found.p_value.numpy() > 0.05
    right = found.label == np.array(last.classes)
    capsys.readouterr()
    decide = ["search", "index", "last", "-k", "2", "--precision", "0.9", "--output", "r.csv"]
    assert main(decide) == 0
    shown = capsys.readouterr().out
    rows = list(csv.DictReader((workplace / "r.csv").open()))
    unknown = found.p_value.numpy() <= 0.05
    words = np.where(accepted, "answered", np.where(unknown, "unfamiliar", "uncertain"))
    assert [row["reason"] or "answered" for row in rows] == np.repeat(words, 2).tolist()
    assert len(set(words)) >= 2
    assert [row["label"] for row in rows] == np.repeat(found.label, 2).tolist()
    assert any(row["item_label"] != row["label"] for row in rows), "two kinds of label"
    for word in ("answered", "uncertain", "unfamiliar"):
        assert f"{(words == word).sum()} {word}" in shown
    assert "at least 90% with 95% confidence" in shown
    told = [line.split()[-1] for line in shown.splitlines() if line.split()[1:2] == ["1"]]
    assert told == words[:10].tolist(), shown
    assert promise["answered"] == pytest.approx(accepted.mean(), abs=2e-3)
    assert promise["obtained"] == pytest.approx(right[accepted].mean(), abs=2e-3)
    assert promise["obtained"] > 0.85
    theirs = index.search(open_source(workplace / "more").read(range(600)), 1).uncertainty
    pooled = torch.cat([found.uncertainty, theirs])
    strange = np.arange(len(pooled)) >= len(last)
    auroc = numbers["ood"]["auroc"]["uncertainty"]
    assert auroc == pytest.approx(roc_auc_score(strange, pooled), abs=1e-3)


def test_a_precision_that_cannot_be_promised_says_which_can(indexed, capsys):
    assert main(["search", "index", "photos", "--precision", "0.999"]) == 2
    told = capsys.readouterr().err
    most = re.search(r"The most is --precision (0\.\d+)\.", told)[1]
    assert "--precision 0.999 cannot be guaranteed" in told
    assert main(["search", "index", "photos", "--precision", most, "--quiet"]) == 0
    assert main(["search", "index", "photos", "--precision", "0.5", "--by-class"]) == 0
    assert "at least 50% of the answers of each of these classes" in capsys.readouterr().out
    assert main(["search", "index", "photos", "--by-class"]) == 2
    assert "--by-class: give --precision P" in capsys.readouterr().err
    assert main(["search", "index", "photos", "--precision", "0.999", "--by-class"]) == 2
    assert "cannot be guaranteed of any class" in capsys.readouterr().err
    parities = [f"class {n},{'odd' if n % 2 else 'even'}" for n in range(10)]
    Path("groups.csv").write_text("\n".join(["label,parity", *parities]))
    coarser = ["search", "index", "photos", "--coarser", "groups.csv", "--output", "levels.csv"]
    assert main([*coarser, "--precision", "0.9"]) == 0
    told = capsys.readouterr().out
    assert "of the answers of each level, as given" in told
    with Path("levels.csv").open() as file:
        rows = list(csv.DictReader(file))
    levels = [row["level"] for row in rows if row["rank"] == "1"]
    assert set(levels) <= {"0", "1", ""}
    assert f" answered ({levels.count('0')} at level 0" in told
    assert re.search(r"prob\. +level", told)
    assert main([*coarser, "--overwrite"]) == 2
    assert "--coarser: give --precision P" in capsys.readouterr().err
    assert main([*coarser, "--overwrite", "--precision", "0.9", "--by-class"]) == 2
    assert "--by-class and --coarser: give one of the two" in capsys.readouterr().err
    for text, told in (
        ("label\n1", "its one column is 'label'"),
        ("name,parity\n1,odd", "has no column 'label'"),
        ("label,parity\n1,odd", "of 10 labels ('class 0', 'class 1', 'class 2', ...)"),
        ("label,parity\n1,odd", "Its labels are others, such as '1'"),
        ("label,parity\nclass 1,odd", "has no group of 9 labels"),
        ("label,parity\nclass 1,", "parity of row 1 is empty"),
        ("label,parity\nclass 1,odd\nclass 1,even", "label 'class 1' has two groups in"),
    ):
        Path("groups.csv").write_text(text)
        assert main([*coarser, "--overwrite", "--precision", "0.9"]) == 2
        assert told in capsys.readouterr().err
    assert main([*FIT, "--overwrite", "--quiet"]) == 0
    off = ["--cross-fit", "0"]
    assert main(["index", "photos", *POSTERIOR, *off, "--output", "plain", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["search", "plain", "photos", "--precision", "0.5"]) == 2
    assert "the index is not calibrated" in capsys.readouterr().err


def test_expected_open_set_queries_calibrate(workplace, capsys):
    assert main([*FIT, "--holdout", "0.5", "--quiet"]) == 0
    build = ["index", "photos", *POSTERIOR, "--quiet", "--output"]
    assert main([*build, "expecting", "--open-set-fraction", "0.3"]) == 0
    assert main([*build, "plain"]) == 0
    shares = []
    for name in ("expecting", "plain"):
        index = Index.load(name, LaplaceEmbedder.load(name, own_model()))
        shares.append(index.calibration.known.mean())
    assert shares[0] == pytest.approx(0.7, abs=0.1)
    assert shares[1] == 1
    assert main([*build, "never", "--open-set-fraction", "1.2"]) == 2
    assert main([*FIT, "--overwrite", "--quiet"]) == 0
    assert main([*build, "never", "--open-set-fraction", "0.2", "--cross-fit", "0"]) == 2
    assert "no items are held out" in capsys.readouterr().err


def test_the_page_without_calibration(fitted, capsys):
    off = ["--cross-fit", "0"]
    assert main(["index", "photos", "--posterior", "posterior", *off, "--output", "plain"]) == 0
    assert "not calibrated" in capsys.readouterr().err
    (fitted / "photos").rename(fitted / "moved")
    assert main(["report", "plain", "moved"]) == 2
    assert "would find themselves" in capsys.readouterr().err
    (fitted / "few").mkdir()
    (fitted / "moved" / "class 1").rename(fitted / "few" / "class 1")
    assert main(["report", "plain", "few"]) == 2
    assert "were in the fit" in capsys.readouterr().err
    assert main(["report", "plain", "few", "--allow-fitted"]) == 0
    page = (fitted / "report.html").read_text()
    assert "is not calibrated" in page
    assert page.count("<svg") == 2


def test_texts_with_an_object_as_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_texts", raising=False)
    (tmp_path / "my_texts.py").write_text(LETTERS)
    rows = [("aab" * (i % 3 + 1), "a") if i % 2 else ("xyz" * (i % 3 + 1), "x") for i in range(40)]
    lines = [f"{text},{label}" for text, label in rows]
    (tmp_path / "t.csv").write_text("\n".join(["body,label", *lines]))
    (tmp_path / "q.csv").write_text("body\nxxyz\n")
    data = ["t.csv", "--text-column", "body", "--quiet"]
    assert main(["fit", *data, "--model", "my_texts:model"]) == 0
    assert main(["index", "t.csv", "--posterior", "posterior", "--quiet"]) == 0
    more = ["-k", "2", "--output", "r.json", "--picture", "p.png"]
    assert main(["search", "index", "q.csv", *more]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert [row["item_label"] for row in found] == ["x", "x"]
    said = {text for text, _ in rows}
    assert {row["text"] for row in found} <= said
    capsys.readouterr()
    assert main(["search", "index", "q.csv", "-k", "1"]) == 0
    assert found[0]["text"] in capsys.readouterr().out
    (tmp_path / "t.csv").write_text("\n".join(["body,label", "other,a", *lines[1:]]))
    assert main(["search", "index", "q.csv", "-k", "1", "--output", "no.json"]) == 0
    assert "t.csv has changed" in capsys.readouterr().err
    assert "text" not in json.loads((tmp_path / "no.json").read_text())[0]
    (tmp_path / "t.csv").write_text("\n".join(["body,label", *lines]))
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert open_source(tmp_path / "q.csv", ReadOptions(text_column="body")).classes is None


def test_queries_of_other_classes_count_against_the_answers_alone(fitted, capsys):
    assert main(["index", "photos", "--posterior", "posterior", "--quiet"]) == 0
    mixed = fitted / "mixed"
    mixed.mkdir()
    (fitted / "photos" / "class 1").rename(mixed / "class new")
    (fitted / "photos" / "class 2").rename(mixed / "class 2")
    n_new, n_two = (len(list((mixed / name).iterdir())) for name in ("class new", "class 2"))
    assert main(["evaluate", "index", "mixed", "--json", "-", "--allow-fitted"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["known_share"] == pytest.approx(n_two / (n_new + n_two))
    assert numbers["answers_right"] == pytest.approx(n_two / (n_new + n_two))
    assert numbers["recall_at_1"] == 1.0
