"""An index of texts, served: what the items say is in answers and on the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from laplace_metric.cli._gallery import LONGEST
from laplace_metric.cli._output import Reporter
from tests.serve.conftest import index_folder
from tests.serve.server import require_extra, serving

MODEL = """
import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(26, 8)

    def forward(self, texts):
        rows = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
        return self.head(torch.tensor(rows, dtype=torch.float32))


def embedder():
    torch.manual_seed(0)
    return Letters()
"""
WORDS = {
    "sea": ("ship", "wave", "harbour", "anchor", "salt", "gull", "mast", "tide", "net", "buoy"),
    "sky": ("cloud", "thunder", "wing", "star", "rain", "blue", "kite", "moon", "hail", "jet"),
}
LONG = "ship " * 400
LONG_ONES = [(LONG + i * "net ", "sea") for i in range(40)]


def sentences(seed: int, n: int) -> list[tuple[str, str]]:
    draw = np.random.default_rng(seed)
    kinds = list(WORDS)
    return [
        (" ".join(draw.choice(WORDS[kind], 9)) + f" & <b>{i}</b>", kind)
        for i, kind in enumerate(draw.choice(kinds, n).tolist())
    ]


def write_table(path: Path, rows: list[tuple[str, str]], column: str = "phrase") -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([(column, "label", "id"), *(
            (text, label, f"item {i}") for i, (text, label) in enumerate(rows)
        )])  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    write_table(folder / "items.csv", [*sentences(0, 240), *LONG_ONES])
    (folder / "letters.py").write_text(MODEL)
    how = ("--model", "letters:embedder", "--text-column", "phrase", "--holdout", "0.5")
    index_folder(folder, "items.csv", *how)
    return folder


def said(path: Path) -> dict[str, str]:
    with path.open(newline="") as file:
        return {row["id"]: row["phrase"] for row in csv.DictReader(file)}


def test_neighbours_say_what_they_are(library, start):
    service = start(library)
    texts = said(library / "items.csv")
    long = service.ask({"text": LONG, "k": 60}).result().neighbours
    assert {n.text for n in long if len(texts[n.id]) > LONGEST} == {LONG[: LONGEST - 1] + "…"}
    asked = texts[service.served.gallery.index.ids[7]]
    answer = service.ask({"text": asked, "k": 20}).result()
    assert answer.neighbours[0].distance == pytest.approx(0, abs=1e-3)
    assert [n.text for n in answer.neighbours] == [texts[n.id] for n in answer.neighbours]
    assert asked in {n.text for n in answer.neighbours}
    held = set(service.served.gallery.index.ids.tolist())
    assert set(service.served.texts) == held
    assert len(held) < len(texts)


def test_a_table_that_has_changed_or_gone_is_not_shown(library, start, capsys):
    gallery, path = start(library).served.gallery, library / "items.csv"
    before = path.read_text()
    assert len(gallery.item_texts(Reporter(quiet=False))) == len(gallery.index)
    assert capsys.readouterr().err == ""
    try:
        path.write_text(before.replace("cloud", "crowd"))
        assert gallery.item_texts(Reporter(quiet=False)) == {}
        assert "has changed" in capsys.readouterr().err
        path.unlink()
        assert gallery.item_texts(Reporter(quiet=False)) == {}
        assert "are not shown" in capsys.readouterr().err
        answer = start(library).ask({"text": "ship", "k": 3}).result()
        assert [n.text for n in answer.neighbours] == [None] * 3
    finally:
        path.write_text(before)


def test_texts_over_http_and_on_the_page(library):
    require_extra()
    httpx = pytest.importorskip("httpx")
    texts = said(library / "items.csv")
    with serving(library, "--quiet") as server, httpx.Client(base_url=server.url) as client:
        plain = client.post(
            "/search?k=3", content="thunder", headers={"Content-Type": "text/plain"}
        )
        as_json = client.post("/search", json={"text": "thunder", "k": 3})
        assert plain.json() == as_json.json()
        near = plain.json()["neighbours"]
        assert [n["text"] for n in near] == [texts[n["id"]] for n in near]
        page = client.post("/", files={"text": (None, "thunder"), "k": (None, "3")}).text
        for n in near:
            shown = n["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            assert f"<blockquote>{shown}</blockquote>" in page
        schema = json.dumps(client.get("/openapi.json").json())
        assert '"text"' in schema
