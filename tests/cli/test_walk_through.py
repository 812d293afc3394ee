"""From a folder of real images to a report, by the commands of the README."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from laplace_metric.cli import main
from laplace_metric.datasets import load
from tests.cli.workshop import write_images, write_model

README = Path(__file__).parents[2] / "README.md"


def commands() -> list[list[str]]:
    block = re.search(r"<!-- walk-through -->\n```console\n(.*?)```", README.read_text(), re.S)
    if block is None:
        pytest.skip("the first page has no walk-through")
    return [shlex.split(line) for line in block[1].splitlines()]


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


def test_the_walk_through(pictures, tmp_path, monkeypatch, capsys):
    pixels, labels = pictures
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    write_images(tmp_path / "photos", pixels[:600], labels[:600])
    write_images(tmp_path / "new", pixels[600:640], labels[600:640])
    write_model(tmp_path, pixels[640:1540], labels[640:1540], "my_model")
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
