"""Photographs found by texts from the command line: real files, real mistakes."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from laplace_metric.cli import main
from tests.cli.workshop import refused
from tests.saved_files import parts_of

TOWERS = """
import hashlib
import torch
from torch import nn


class Words(nn.Module):
    def forward(self, texts):
        rows = []
        for text in texts:
            parts = []
            for word in text.split():
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
                parts.append(torch.randn(24, generator=torch.Generator().manual_seed(seed)))
            rows.append(torch.stack(parts).mean(0))
        return torch.stack(rows)


def texts():
    return Words()


def images():
    return nn.Flatten()


def sized():
    from PIL import Image

    def transform(image):
        small = bytearray(image.convert("L").resize((8, 8)).tobytes())
        return torch.frombuffer(small, dtype=torch.uint8).view(1, 8, 8).float() / 255

    return nn.Flatten(), transform


def broken():
    return nn.Linear(3, 2)
"""
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KINDS = ("a {}", "digit {}", "the {} there", "my {}", "{} again", "some {}", "{} once more")
KINDS += ("just {}", "{} here", "old {}", "{} of mine", "new {}", "{} too", "one more {}")
FIT = ["image-text", "fit", "photos.csv", "--model", "my_towers:images"]
FIT += ["--text-model", "my_towers:texts", "--epochs", "60", "--learning-rate", "0.01"]


def write_rows(path: Path, rows: list[tuple[str, str]], header=("image", "text")) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """200 digits, each with four texts of fourteen that name it."""
    folder, found = tmp_path_factory.mktemp("photographs"), load_digits()
    (folder / "drawn").mkdir()
    rows = []
    for i in range(200):
        pixels, label = (found.images[i] * 15.9).astype(np.uint8), int(found.target[i])
        Image.fromarray(pixels).save(folder / "drawn" / f"{i:03d}.png")
        texts = [KINDS[(i + j) % len(KINDS)].format(NAMES[label]) for j in range(4)]
        rows += [(f"drawn/{i:03d}.png", text) for text in texts]
    write_rows(folder / "photos.csv", rows)
    (folder / "my_towers.py").write_text(TOWERS)
    return folder


@pytest.fixture(scope="module")
def library(made) -> Path:
    """The same with a fitted folder ``image-text`` and its numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        sys.modules.pop("my_towers", None)
        assert main([*FIT, "--quiet", "--json", "fit.json"]) == 0
    return made


@pytest.fixture
def place(library, tmp_path, monkeypatch) -> Path:
    """A copy to break."""
    here = tmp_path / "here"
    shutil.copytree(library, here)
    monkeypatch.chdir(here)
    monkeypatch.delitem(sys.modules, "my_towers", raising=False)
    return here


def search(*words: str) -> dict:
    options = ["image-text", "search", "image-text", *words, "--trust-recipe", "--quiet"]
    assert main([*options, "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text())
    Path("found.json").unlink()
    return found


def test_a_fit_says_what_it_did(place, capsys):
    numbers = json.loads((place / "fit.json").read_text())
    assert numbers["images"] == 200
    assert numbers["pairs"] == 800
    assert 0.5 * 800 < numbers["pairs of the fit"] < 0.75 * 800
    assert 0 <= numbers["ece of texts"] < 0.5
    assert not (place / ".image-text.checkpoint").exists()
    assert main([*FIT, "--epochs", "1", "--overwrite"]) == 0
    said = capsys.readouterr().out
    assert "of 800 pairs of 200 images and 140 texts" in said
    assert "match probability of images" in said


def test_texts_find_their_images_with_a_probability(place):
    truth = load_digits().target
    found = search("--text", "a seven", "--text", "digit zero", "-k", "5")
    rows = found["results"]
    assert [row["query"] for row in rows] == ["a seven"] * 5 + ["digit zero"] * 5
    wanted = {"a seven": 7, "digit zero": 0}
    right = [truth[int(row["id"][6:9])] == wanted[row["query"]] for row in rows]
    assert sum(right) >= 8
    assert all(0 <= row["match_probability"] <= 1 for row in rows)
    assert rows[0]["match_probability"] > 0.1, "a tenth of the images are of each digit"
    assert "label" not in rows[0]
    assert {row["unknown"] for row in rows} == {False}


def test_images_find_their_texts(place):
    names = [f"drawn/{i:03d}.png" for i in range(20)]
    rows = search(*(word for name in names for word in ("--image", name)), "-k", "4")["results"]
    truth, nearest = load_digits().target, rows[::4]
    assert [row["query"] for row in nearest] == names
    right = [NAMES[truth[i]] in row["id"] for i, row in enumerate(nearest)]
    assert sum(right) >= 14


def test_the_answers_are_shown_and_written(place, capsys):
    words = ["image-text", "search", "image-text", "--text", "a two", "-k", "3", "--trust-recipe"]
    assert main([*words, "--picture", "two.png", "--output", "two.csv"]) == 0
    said = capsys.readouterr().out
    assert "drawn/" in said
    assert "label" not in said
    assert "wrote two.png" in said
    with Image.open("two.png") as picture:
        assert picture.width > 300
    with Path("two.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    words[3:5] = ["--image", "drawn/003.png"]
    assert main([*words, "--picture", "three.png", "--quiet"]) == 0


def test_a_model_with_its_own_transform(place):
    sized = [*FIT, "--model", "my_towers:sized", "--overwrite", "--quiet"]
    assert main([*sized, "--epochs", "2"]) == 0
    assert len(search("--image", "drawn/003.png", "-k", "1")["results"]) == 1


def rows_of_table(place: Path) -> list[tuple[str, str]]:
    with (place / "photos.csv").open() as file:
        return [(row["image"], row["text"]) for row in csv.DictReader(file)]


def refit(place: Path, rows, capsys, *more: str, header=("image", "text")) -> str:
    write_rows(place / "photos.csv", rows, header)
    return refused([*FIT, "--overwrite", *more], capsys)


def test_tables_that_are_refused(place, capsys):
    rows = rows_of_table(place)
    for header, table, says in (
        (("picture", "text"), rows, "no column 'image'. Name it with --image-column; its columns"),
        (("image", "words"), rows, "no column 'text'. Name it with --text-column"),
        (("image", "text"), [*rows[:3], ("drawn/000.png", "  ")], "row 4 has an empty 'text'"),
        (("image", "text"), [*rows[:3], ("", "a two")], "row 4 has an empty 'image'"),
        (("image", "text"), [], "holds no row"),
        (("image", "text"), rows[:1], "leaves"),
    ):
        assert says in refit(place, table, capsys, header=header)
    for name in ("none.csv", "drawn"):
        assert "is no table" in refused([*FIT[:2], name, *FIT[3:], "--overwrite"], capsys)


def test_images_that_cannot_be_read_are_named(place, capsys):
    rows = rows_of_table(place)
    (place / "drawn" / "007.png").write_bytes(b"no image")
    said = refit(place, rows, capsys)
    assert "007.png cannot be read as an image" in said
    assert "--skip-unreadable" in said
    left = [*FIT, "--overwrite", "--skip-unreadable", "--epochs", "1", "--json", "fit.json"]
    assert main(left) == 0
    assert "skipped 1 of 200 images" in capsys.readouterr().err
    assert json.loads((place / "fit.json").read_text())["images"] == 199
    shutil.copy(place / "drawn" / "008.png", place / "drawn" / "007.png")
    more = [*rows, ("drawn/gone.png", "a two")]
    assert "gone.png cannot be read" in refit(place, more, capsys, "--epochs", "1")


def test_pairs_one_to_one_say_nothing_of_generality(place, capsys):
    rows = [(f"drawn/{i:03d}.png", f"text number {i}") for i in range(60)]
    write_rows(place / "photos.csv", rows)
    assert main([*FIT, "--overwrite", "--epochs", "1"]) == 0
    said = capsys.readouterr().err
    assert "every image has one text and every text one image" in said
    write_rows(place / "photos.csv", [*rows, ("drawn/000.png", "another")])
    assert main([*FIT, "--overwrite", "--epochs", "1"]) == 0
    assert "every image has one text" not in capsys.readouterr().err


def test_few_pairs_are_indexed_without_probabilities(place, capsys):
    write_rows(place / "photos.csv", rows_of_table(place)[:40])
    assert main([*FIT, "--overwrite", "--epochs", "1"]) == 0
    assert "images are not calibrated, so without match probabilities" in capsys.readouterr().err
    assert "match_probability" not in search("--text", "a two", "-k", "2")["results"][0]


def test_what_is_refused(place, capsys):
    words = ["image-text", "search", "image-text", "--trust-recipe"]
    text, image = ["--text", "a two"], ["--image", "drawn/000.png"]
    again = [*FIT, "--overwrite"]
    for arguments, says in (
        (words, "give --text, which finds images, or --image"),
        ([*words, *text, *image], "give --text, which finds images, or --image"),
        ([*words, "--text", " "], "--text is empty"),
        ([*words, "--image", "gone.png"], "gone.png cannot be read"),
        ([*words[:3], *text], "names the model 'my_towers:texts'"),
        ([*words[:3], *text], "--trust-recipe to run it, or name a model yourself with --text-mod"),
        ([*words[:3], *image], "name a model yourself with --model"),
        ([*words[:2], "none", *text], "none does not exist"),
        ([*words[:2], "drawn", *text], "drawn is a folder"),
        ([*words, *text, "--picture", "x.jpg"], "end it in .png"),
        ([*again, "--model", "my_towers:broken"], "fails on inputs"),
        ([*again, "--text-model", "my_towers:broken"], "fails on ['a text']"),
        ([*again, "--model", "my_towers:sized", "--size", "9"], "which sets the size"),
        ([*again, "--objective", "luck"], "--objective luck"),
        (FIT, "image-text exists: give --overwrite"),
    ):
        assert says in refused(arguments, capsys)
    assert main([*words[:3], *text, "--text-model", "my_towers:texts", "--quiet"]) == 0
    data = (place / "image-text").read_bytes()
    (place / "image-text").write_bytes(data.replace(b"my_towers:texts", b"my_towers:other"))
    assert "damaged" in refused([*words, "--text", "a"], capsys)


@pytest.mark.parametrize("objective", ["siglip", "clip", "prolip-regions"])
def test_other_objectives_search_too(objective, place):
    chosen = [*FIT, "--objective", objective, "--overwrite", "--quiet", "--epochs", "5"]
    assert main(chosen) == 0
    found = search("--text", "a seven", "-k", "2")["results"]
    assert 0 <= found[0]["match_probability"] <= 1
    assert (found[0]["distance_sd"] == 0) is (objective in ("siglip", "clip"))


def test_an_interrupted_fit_goes_on(place, monkeypatch, capsys):
    from laplace_metric.image_text._training import PairRun

    plain, steps = PairRun.step, []

    def step(self, rows, labels):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return plain(self, rows, labels)

    again = [*FIT, "--overwrite", "--quiet", "--epochs", "8", "--output", "other"]
    monkeypatch.setattr(PairRun, "step", step)
    assert main(again) == 130
    assert (place / ".other.checkpoint").exists()
    assert not (place / "other").exists()
    assert main(again) == 0
    done = len(steps)
    steps[:] = [1] * 5
    assert main([*again, "--output", "whole"]) == 0
    assert done - 5 < len(steps) - 5, "it went on from where it was"
    first, second = (parts_of(place / name)["heads"].content for name in ("other", "whole"))
    assert first["losses"] == second["losses"]
