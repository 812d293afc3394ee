"""File names of any bytes through every command, and over HTTP."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from laplace_metric._utils.names import utf8
from tests.cli.workshop import trusting, write_model
from tests.serve.conftest import inside, start  # noqa: F401, a fixture

NAMES = [
    b"\xff", b"a\nb", b"a\rb", b"\x1b[31m", b"\xed\xa0\x80", b"=1+1", b"<b>&", b"\\udcff", b"[red]",
    b"$\\bad$", "é".encode(), b"%s{0}",
]  # fmt: skip
CLASS = b"\xfe$\\frac$ "
"""What the name of each class begins with: no UTF-8, no formula that matplotlib knows."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """``photos`` with names that are not text, and commands' outputs under such names too."""
    digits = load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
    folder = tmp_path_factory.mktemp("hostile")
    write_model(folder, images[600:800], labels[600:800], "hostile_model")
    for row in range(120):
        place = os.fsencode(folder) + b"/photos/" + CLASS + b"%d" % (row % 2)
        png = io.BytesIO()
        Image.fromarray(images[labels == row % 2][row // 2]).save(png, "PNG")
        try:
            os.makedirs(place, exist_ok=True)
            Path(os.fsdecode(place + b"/%d" % row + NAMES[row % len(NAMES)] + b".png")).write_bytes(
                png.getvalue()
            )
        except OSError:
            pytest.skip("the file system takes only names that are UTF-8")
    with inside(folder):
        posterior, index = (os.fsdecode(name + b"\xff") for name in (b"posterior", b"index"))
        fit = ["fit", "photos", "--model", "hostile_model:embedder", "--holdout", "0.6"]
        assert trusting([*fit, "--output", posterior, "--quiet"]) == 0
        assert trusting(["index", "photos", "--posterior", posterior, "--output", index]) == 0
        Path("index").symlink_to(index)
    return folder


def names_of(folder: Path) -> set[bytes]:
    root = os.fsencode(folder / "photos")
    return {os.path.relpath(os.path.join(at, f), root) for at, _, fs in os.walk(root) for f in fs}


def test_names_of_any_bytes_through_every_command(hostile, capsys):
    known, index = names_of(hostile), os.fsdecode(b"index\xff")
    with inside(hostile):
        search = ["search", index, "photos", "-k", "2", "--data", "photos", "--overwrite"]
        for ending in ("csv", "json"):
            output = os.fsdecode(b"found\xff." + ending.encode())
            more = ["--picture", "found.png"] if ending == "csv" else []
            assert trusting([*search, "--output", output, *more]) == 0
        shown = capsys.readouterr().out
        assert not set(shown) & {"\x1b", "\r"}
        assert trusting([*search, "--json", "-", "--quiet"]) == 0
        result = json.loads(capsys.readouterr().out)["results"]
        with Path(os.fsdecode(b"found\xff.json")).open(encoding="utf-8") as file:
            assert json.load(file) == result  # JSON gives the exact names back
        assert {os.fsencode(row["query"]) for row in result} == known
        assert {os.fsencode(row["id"]) for row in result} < known  # as the index loads them
        with Path(os.fsdecode(b"found\xff.csv")).open(encoding="utf-8", newline="") as file:
            assert {row["query"] for row in csv.DictReader(file)} == {
                utf8(os.fsdecode(name)).decode() for name in known
            }
        assert trusting(["evaluate", index, "photos", "--json", "-", "--quiet"]) == 0
        assert trusting(["report", index, "photos", "--output", "page\x1b.html"]) == 0
        page = html.unescape(Path("page\x1b.html").read_text(encoding="utf-8"))
        assert "\\udcfe$\\frac$ " in page
        for ending in ("csv", "npz", "safetensors"):
            embed = ["embed", "photos", "--posterior", os.fsdecode(b"posterior\xff"), "--output"]
            assert trusting([*embed, f"e.{ending}", "--quiet"]) == 0
        with np.load("e.npz") as file:
            assert set(map(os.fsencode, file["ids"].tolist())) == known


def test_names_of_any_bytes_over_http(hostile, start):  # noqa: F811
    client, known = start(hostile), names_of(hostile)
    for name in sorted(known)[::9]:
        content = (hostile / "photos" / os.fsdecode(name)).read_bytes()
        answer = client.post("/search", content=content, headers={"Content-Type": "image/png"})
        assert answer.status_code == 200
        for near in answer.json()[0]["neighbours"]:
            assert os.fsencode(near["id"]) in known


@pytest.mark.parametrize("json_too", [[], ["--json", "-", "--quiet"]])
def test_an_ascii_terminal_gets_every_result(hostile, json_too, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    with inside(hostile):
        assert trusting(["search", "index", "photos", "-k", "1", *json_too]) == 0
    assert sys.stdout.errors == "strict"  # as it was
    text = written.getvalue().decode("ascii")
    if json_too:
        found = {os.fsencode(row["query"]) for row in json.loads(text)["results"]}
        assert found == names_of(hostile)
    else:
        assert "\\u2026" in text  # of names that are shortened
