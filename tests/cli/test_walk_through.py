"""From a folder of real images to a report, by the commands of its page."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.datasets import load
from benchmarks.datasets.packed import read_packed
from laplace_metric.cli import main
from tests.cli.workshop import write_images, write_model

PAGE = Path(__file__).parents[2] / "docs" / "folders.md"


def commands(mark: str = "walk-through", own: str = "--size 28") -> list[list[str]]:
    """Words of each command; the networks of these tests have a head, and 28 pixels."""
    block = re.search(rf"<!-- {mark} -->\n```console\n(.*?)```", PAGE.read_text(), re.S)
    assert block is not None
    lines = block[1].replace("\\\n", "").replace("--head append", own).splitlines()
    return [shlex.split(line) for line in lines]


@pytest.fixture
def pictures(request, digits):
    """Bytes [N, 28, 28] and labels: FashionMNIST, or digits where there is no data folder."""
    try:
        folder = request.getfixturevalue("real_data")
    except pytest.skip.Exception:
        images, labels = digits
        scaled = [np.array(Image.fromarray(image).resize((28, 28))) for image in images]
        return np.stack(scaled), labels
    found = load("fashion-mnist", "train", folder, limit=1540)
    return found.images[:, 0].numpy(), found.labels.numpy()


@pytest.fixture
def photos(pictures, tmp_path, monkeypatch):
    pixels, labels = pictures
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    write_images(tmp_path / "photos", pixels[:600], labels[:600])
    write_images(tmp_path / "new", pixels[600:640], labels[600:640])
    write_model(tmp_path, pixels[640:1540], labels[640:1540], "my_model")


def test_the_short_route(photos, tmp_path, capsys):
    for program, *arguments in commands("short"):
        assert program == "laplace-metric"
        assert main(arguments) == 0, capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "matches.csv").open()))
    first = [row for row in rows if row["rank"] == "1"]
    answered = [row for row in first if row["answered"] == "True"]
    assert len(rows) == 40 * 3
    assert len(answered) > 10
    right = [row["query"].split("/")[0] == row["label"] for row in answered]
    assert sum(right) >= 0.8 * len(right)
    assert "precision" in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite_pytorch") is None,
    reason="efficientnet_lite_pytorch not installed",
)
def test_the_page_says_what_its_encoder_gives(real_data, tmp_path, monkeypatch, capsys):
    """The file and the four commands as they are copied, on the photographs of the page."""
    if not (real_data / "CUB").is_dir():
        pytest.skip("no CUB in the folder of real images")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    packed, table = read_packed(real_data / "CUB/cub100_jpeg.npz", "labels", "train", "class_names")
    for row in np.flatnonzero(table["labels"] < 10):
        species = str(table["class_names"][table["labels"][row]]).replace("_", " ")
        path = tmp_path / ("photos" if table["train"][row] else "new") / species / f"{row:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed.file(row))
    text = PAGE.read_text()
    (code,) = re.findall(r"<!-- my_model -->\n```py\n(.*?)```", text, re.S)
    (told,) = re.findall(r"<!-- printed -->\n```\n(.*?)```", text, re.S)
    Path("my_model.py").write_text(code)
    for _, *arguments in commands("short", "--head append"):
        assert main(arguments) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out.replace("\xa0", " ").splitlines()
    for line in told.splitlines():
        parts = [part.strip() for part in line.split("...")]
        found = [shown for shown in printed if all(part in shown for part in parts)]
        assert len(found) == 1, (parts, "\n".join(printed))
    with Path("matches.csv").open() as file:
        first = [row for row in csv.DictReader(file) if row["rank"] == "1"]
    named = [row["query"].split("/")[0] for row in first]
    right = {
        column: np.array([row[column] == own for row, own in zip(first, named, strict=True)])
        for column in ("item_label", "label")
    }
    answered = np.array([row["answered"] == "True" for row in first])
    told = (
        f"{len(first)} nearest items {right['item_label'].mean():.0%} are of the right species, of "
    )
    told += f"the {answered.sum()} answers {right['label'][answered].mean():.0%}."
    assert told.replace("%", " %") in text


def test_the_walk_through(photos, tmp_path, capsys):
    for program, *arguments in commands():
        assert program == "laplace-metric"
        assert main(arguments) == 0, capsys.readouterr().err
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 3
    assert "http:" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert (tmp_path / "matches.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "matches.csv").open()))
    assert len(rows) == 40 * 3
    right = [r["query"].split("/")[0] == r["label"] for r in rows if r["rank"] == "1"]
    assert sum(right) > 0.6 * len(right)


WAVES = """
import torch
from torch import nn


class Waves(nn.Module):
    def forward(self, x):
        return x.sin()


def embedder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 1024), Waves())
        nn.init.normal_(body[1].weight, std=0.15)
        return nn.Sequential(body, nn.Linear(1024, 64))
"""
"""An untrained head over more features than there are photographs: what is fitted looks sure."""
CARS_FROGS_SHIPS = (1, 6, 8)


def answers(folder: str, *more: str) -> dict[str, float]:
    """What ``evaluate index FOLDER`` says."""
    assert (
        main(["evaluate", "index", folder, "--trust-recipe", "--json", "n", "--quiet", *more]) == 0
    )
    return json.loads(Path("n").read_text())


def mean_match_probability(folder: str) -> float:
    """Of the nearest items that ``search index FOLDER`` finds."""
    asked = ["search", "index", folder, "-k", "1", "--trust-recipe", "--json", "n", "--overwrite"]
    assert main([*asked, "--quiet"]) == 0
    rows = json.loads(Path("n").read_text())["results"]
    return sum(row["match_probability"] for row in rows) / len(rows)


def sampling_error(share: float, *sizes: int) -> float:
    """Four standard errors of a binomial share that was estimated from several samples."""
    return 4 * math.sqrt(share * (1 - share) * sum(1 / n for n in sizes))


def test_the_report_holds_on_photographs_that_nothing_saw(real_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    (tmp_path / "my_model.py").write_text(WAVES)
    found = load("cifar10", "train", real_data, limit=6000)
    rows = np.flatnonzero(np.isin(found.labels, CARS_FROGS_SHIPS))
    rows = np.random.default_rng(0).permutation(rows)
    pixels, labels = found.images[rows].permute(0, 2, 3, 1).numpy(), found.labels[rows].numpy()
    write_images(tmp_path / "photos", pixels[:600], labels[:600])
    write_images(tmp_path / "unseen", pixels[600:1200], labels[600:1200])
    write_images(tmp_path / "new", pixels[1200:1210], labels[1200:1210])
    walk = commands()
    for _, *arguments in walk:
        assert main([*arguments, "--quiet"]) == 0, capsys.readouterr().err
    promised, true = answers("photos"), answers("unseen", "--overwrite")
    sizes = promised["queries"], true["queries"]
    assert sizes == (120, 600)
    right, error = true["answers_right"], sampling_error(true["answers_right"], *sizes)
    assert abs(promised["answers_right"] - right) < error
    assert abs(promised["mean_probability"] - right) < error
    assert abs(true["mean_probability"] - right) < error
    assert abs(mean_match_probability("unseen") - true["recall_at_1"]) < error

    old_fit = [word for word in walk[0][1:] if word not in ("--holdout", "0.4")]
    old_index = [*walk[1][1:], "--holdout", "0.4", "--overwrite", "--quiet"]
    assert main([*old_fit, "--overwrite", "--quiet"]) == 0
    capsys.readouterr()
    assert main(old_index) == 2
    assert "photos is what the posterior was fitted to, all of it" in capsys.readouterr().err
    assert main([*old_index, "--allow-fitted"]) == 0
    assert main(["evaluate", "index", "photos", "--trust-recipe"]) == 2
    assert "100% of the queries (120 of 120) were in the fit" in capsys.readouterr().err
    promised, true = (
        answers("photos", "--overwrite", "--allow-fitted"),
        answers("unseen", "--overwrite"),
    )
    assert abs(promised["mean_probability"] - true["answers_right"]) < error
    sure = mean_match_probability("unseen")
    assert abs(sure - true["recall_at_1"]) < error, "each is compared with the others of its fit"
