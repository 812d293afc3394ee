"""The Python of ``docs/folders.md``, with real photographs and the encoder of the page.

Its commands are run by ``tests/cli/test_walk_through.py``.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets.packed import read_packed
from tests import pages
from tests.test_examples import alike

PAGE = Path(__file__).parent.parent / "docs" / "folders.md"
MOST_LINES = 25
SPECIES = 10
NEW = {"albatross": (0, 0), "auklet": (2, 0), "blackbird": (4, 0)}
"""Names of new photographs: of which of our species, and which of its test photographs."""
OTHERS = {"kingbird": 40, "kingfisher": 41}
"""Of species that are not in the folder."""


@pytest.fixture
def birds(real_data: Path, tmp_path: Path) -> Path:
    """``photos`` with ten species by folder, and ``new`` with six photographs."""
    for folder in ("CUB", "HierarCaps"):
        if not (real_data / folder).is_dir():
            pytest.skip(f"no {folder} in the folder of real images")
    packed, table = read_packed(real_data / "CUB/cub100_jpeg.npz", "labels", "train", "class_names")
    asked = {label: np.flatnonzero((table["labels"] == label) & ~table["train"]) for label in
             (*(one for one, _ in NEW.values()), *OTHERS.values())}  # fmt: skip
    chosen = {name: asked[label][place] for name, (label, place) in NEW.items()}
    chosen |= {name: asked[label][0] for name, label in OTHERS.items()}
    (tmp_path / "new").mkdir()
    for name, row in chosen.items():
        (tmp_path / "new" / f"{name}.jpg").write_bytes(packed.file(row))
    things, _ = read_packed(real_data / "HierarCaps/images_jpeg.npz")
    (tmp_path / "new" / "no_bird.jpg").write_bytes(things.file(0))
    for row in np.flatnonzero(table["labels"] < SPECIES):
        if row not in chosen.values():
            species = str(table["class_names"][table["labels"][row]]).replace("_", " ")
            path = tmp_path / "photos" / species / f"{row:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.file(row))
    return tmp_path


def test_the_page_is_short():
    lines = [
        x
        for language, text in pages.BLOCK.findall(PAGE.read_text())
        if language == "python"
        for x in text.splitlines()
    ]
    assert len([line for line in lines if line]) <= MOST_LINES


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite_pytorch") is None,
    reason="efficientnet_lite_pytorch not installed",
)
def test_the_page_runs_and_says_what_is_printed(birds, monkeypatch):
    monkeypatch.chdir(birds)
    monkeypatch.syspath_prepend(birds)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    (code,) = re.findall(r"<!-- my_model -->\n```py\n(.*?)```", PAGE.read_text(), re.S)
    (birds / "my_model.py").write_text(code)
    told = 0
    for shown, printed in pages.shown_and_printed(PAGE):
        assert alike(shown, printed), printed
        told += 1
    assert told == 2
    assert (birds / "found.png").stat().st_size > 10_000
    assert (birds / "index.safetensors").is_file()
