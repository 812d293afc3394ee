"""Figures: what each must show, how its files look on light and dark pages, where pages show it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks import page_figures
from benchmarks.plots import Sweep, _style, sweep_plot
from benchmarks.plots._image_text import rank_interval
from benchmarks.records import FIGURES, RESULTS, read_record
from benchmarks.variants.people import CHOSEN, CONCENTRATIONS, LABELS
from benchmarks.variants.transfer import ASKED, TRIALS
from benchmarks.variants.views import KINDS, NOISES, NOISY, REGULARIZE, VIEWS
from laplace_metric.plots._style import INK

ROOT = Path(page_figures.__file__).parent.parent
IMAGE = re.compile(r"!\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
HTML = re.compile(r"<img\b[^>]*>")
PICTURES = {
    *("three-questions", "retrieval-neighbours", "image-text-drawings", "image-text-ways"),
    "twenty",
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
        assert left.get_title(loc="left") == part.task
        assert (left.get_xlabel(), right.get_xlabel()) == ("R-AUROC", "AUROC of OOD inputs")
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


def test_intervals_of_a_rank_correlation_hold_the_truth():
    """Of a normal law: 6 / pi asin(r / 2) for a correlation r."""
    random, r, n, held = np.random.default_rng(0), 0.7, 60, 0
    truth = 6 / np.pi * np.arcsin(r / 2)
    for _ in range(1_000):
        x, y = random.standard_normal((2, n))
        low, high = rank_interval(spearmanr(x, r * x + math.sqrt(1 - r**2) * y).statistic, n)
        held += low < truth < high
    assert held / 1_000 == pytest.approx(0.95, abs=0.02)


def drawn(axes):
    """Name -> y of every series with error bars."""
    return {bars.get_label(): bars[0].get_ydata() for bars in axes.containers}


def test_a_sweep_has_its_means_its_intervals_and_what_is_printed():
    seeds = [[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]
    one = Sweep("title", "weight", "rank", ["a", "b"], {"ours": seeds}, {"printed": [math.nan, 2]},
                (0, 5))  # fmt: skip
    (axes,) = sweep_plot([one]).axes
    assert drawn(axes)["ours"] == pytest.approx([2, 4])
    (bars,) = axes.containers
    low, high = bars[2][0].get_segments()[0][:, 1]
    half = 4.302653 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert (low, high) == pytest.approx((0, 2 + half))  # cut off at the limit
    (printed,) = [line for line in axes.lines if line.get_label() == "printed"]
    assert printed.get_ydata() == pytest.approx([math.nan, 2], nan_ok=True)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("weight", "rank")


def test_the_concentration_is_drawn_from_its_record():
    rows = read_record("views")["rows"]
    noise, rank, variation = page_figures.concentration(rows).axes

    def mean(line, *kinds):
        own = [row for row in rows if row["line"] == line]
        return np.mean([row[kind] for row in own for kind in kinds])

    for method in KINDS:
        expected = [mean(f"{method}: {pairs}", *NOISES) for pairs in (VIEWS, NOISY)]
        assert drawn(noise)[f"{method}, four noises"] == pytest.approx(expected)
    lines = [f"explicit concentration, regularize {weight}: {VIEWS}" for weight in REGULARIZE]
    for axes, key in ((rank, "severity"), (variation, "variation")):
        (values,) = drawn(axes).values()
        assert values == pytest.approx([mean(line, key) for line in lines])


def test_settings_and_crops_are_drawn_from_their_records():
    rows = read_record("transfer")["rows"]
    grid = page_figures.settings(rows).axes
    for name, axes in zip(ASKED, grid, strict=False):
        assert axes.get_title() == name
        own, reference = axes.containers
        assert len(own[0].get_xdata()) == TRIALS
        first = [row for row in rows if (row["method"], row["trial"]) == (name, 0)]
        assert own[0].get_xdata()[0] == pytest.approx(np.mean([r["recall@1"] for r in first]))
        assert own[0].get_ydata()[0] == pytest.approx(np.mean([r["r_auroc"] for r in first]))
        assert "half of the images" in reference.get_label()
    rows = read_record("people")["rows"]
    crops, people = page_figures.crops_choose(rows).axes
    own = [row for row in rows if row["model"] == CHOSEN]
    own = [r for r in own if (r["labels"], r["concentration"]) == (LABELS[0], CONCENTRATIONS[0])]
    for axes, key in ((crops, "crop rank"), (people, "entropy rank")):
        assert drawn(axes)[f"model: {CHOSEN}"][0] == pytest.approx(np.mean([r[key] for r in own]))
