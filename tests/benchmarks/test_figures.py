"""Figures: what each must show, how its files look on light and dark pages, where pages show it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import page_figures
from benchmarks.plots import DrawnInput, _style, draws_plot
from benchmarks.records import FIGURES, RESULTS, read_record
from laplace_metric.plots._style import INK

ROOT = Path(page_figures.__file__).parent.parent
IMAGE = re.compile(r"!\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
HTML = re.compile(r"<img\b[^>]*>")
PICTURES = {
    "three-questions",
    "retrieval-neighbours",
    "image-text-drawings",
    "twenty",
    "posterior-neighbours",
    "posterior-draws",
    "views",
    "evaluation",
    "report",
}
"""Of pixels: a PNG alone."""


# --- pages --------------------------------------------------------------------------------------


def pages():
    found = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "baselines").rglob("*.md"),
    ]
    return [*found, *(ROOT / "benchmarks").rglob("*.md")]


def images():
    """(page, alternative text, file) of every image that is not a badge."""
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        shown = IMAGE.findall(text)
        for tag in HTML.findall(text):
            words, place = (re.search(rf'{name}="([^"]*)"', tag) for name in ("alt", "src"))
            shown.append((words[1] if words else "", place[1] if place else ""))
        for words, place in shown:
            if "://" not in place:
                yield page, words, (page.parent / place).resolve()


def test_every_image_is_there_and_is_described():
    shown = list(images())
    assert len(shown) >= 15
    for page, words, path in shown:
        assert path.is_file(), (page.name, path.name)
        assert len(words.split()) >= 3, (page.name, words)


def test_every_figure_is_on_a_page_as_svg_if_it_is_one():
    shown = {path for _, _, path in images()}
    files = set(FIGURES.iterdir())
    assert {path.stem for path in shown if path.parent == FIGURES} == {p.stem for p in files}
    for path in files:
        assert path.suffix in (".png", ".svg")
        if path.stem in PICTURES:
            assert path.suffix == ".png"
        else:
            assert {path.with_suffix(".png"), path.with_suffix(".svg")} <= files
            assert path.with_suffix(".svg") in shown


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.svg")), ids=lambda path: path.stem)
def test_committed_drawings_are_small_narrow_and_follow_the_page(path):
    text = path.read_text()
    assert len(text) < 300_000
    root = ET.fromstring(text)
    assert float(root.get("width").removesuffix("pt")) <= 72 * _style.WIDTH
    assert INK not in text
    assert "<text" not in text, "letters are outlines: no font is needed"
    assert text.count("prefers-color-scheme:dark") == 1
    assert "url(http" not in text


# --- files --------------------------------------------------------------------------------------


# --- what they show -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lam():
    record = read_record("lam", RESULTS / "small")
    tasks = list(dict.fromkeys(row["task"] for row in record["rows"]))[:2]
    return {**record, "rows": [row for row in record["rows"] if row["task"] in tasks]}


def test_rows_are_sorted_and_columns_named(lam):
    figure = page_figures.dots(lam)
    parts = page_figures.parts(lam)
    assert len(figure.axes) == 2 * len(parts)
    for part, left, right in zip(parts, figure.axes[::2], figure.axes[1::2], strict=True):
        assert left.get_title(loc="left") == part.task.replace("cub", "birds")
        assert (left.get_xlabel(), right.get_xlabel()) == ("R-AUROC", "AUROC, unfamiliar")
        (dots,) = left.containers
        x = dots[0].get_xdata()
        assert all(a >= b for a, b in pairwise(x))
        names = [text.get_text() for text in left.get_yticklabels()]
        for name, value in zip(names, x, strict=True):
            rows = part.methods[name]
            values = [row["metrics"]["r_auroc"]["value"] for row in rows]
            assert value == pytest.approx(np.mean(values))
        sets = [text.get_text() for text in right.get_legend().get_texts()]
        assert [f"auroc {name}" for name in sets] == [
            key for key in part.metrics if key.startswith("auroc ")
        ]
        coloured = {t.get_text() for t in left.get_yticklabels() if t.get_color() != INK}
        assert coloured == {name for name in names if name.startswith("laplace")}


def test_draws_stand_around_their_means_and_near_classes_share_a_label():
    rng = np.random.default_rng(0)
    items = np.concatenate(
        [rng.normal(at, 0.1, (40, 2)) for at in ((0, 0), (0.2, 0), (6, 0), (0, 6))]
    )
    labels = [name for name in "abcd" for _ in range(40)]
    one = DrawnInput(
        "clear", np.zeros((4, 4)), np.array([6.0, 0]), rng.normal((6, 0), 0.2, (50, 2))
    )
    figure = draws_plot([one, one], items, labels, "abcd")
    (axes,) = (each for each in figure.axes if each.texts)
    assert [text.get_text() for text in axes.texts] == ["a,\nb", "c", "d"]
    means = [c.get_offsets() for c in axes.collections if len(c.get_offsets()) == 1]
    np.testing.assert_allclose(means, [[[6, 0]]] * 2)
    drawn = [c.get_offsets() for c in axes.collections if len(c.get_offsets()) == 50]
    np.testing.assert_allclose(drawn[0], one.draws)
