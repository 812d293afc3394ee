"""Figures: what each must show, how its files look on light and dark pages, where pages show it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.isotonic import IsotonicRegression

from benchmarks import page_figures, plots
from benchmarks.plots import _files, _style
from benchmarks.plots._image_text import rank_interval
from benchmarks.records import FIGURES, RESULTS, read_record
from benchmarks.retrieval.split import ALPHAS, PROMISES
from laplace_metric.plots._style import INK, STYLES

ROOT = Path(page_figures.__file__).parent.parent
IMAGE = re.compile(r"!\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
HTML = re.compile(r"<img\b[^>]*>")
PICTURES = {"three-questions", "retrieval-neighbours", "image-text-drawings", "image-text-ways"}
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


def drawing():
    errors = {n: [8 / n, 9 / n, 11 / n] for n in (1, 4)}
    return plots.svg_file(plots.headed(plots.draws_plot(errors, 2.0), "Is it so?", "two\nlines"))


@pytest.fixture(scope="module")
def svg():
    return drawing()


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rules(css):
    return dict(re.findall(r"(\S+?)\{([^{}]*)\}", css))


def test_ground_and_ink_change_together(svg):
    css = re.search(r"<style>(.*?)</style>", svg)[1]
    light, dark = css.split("@media (prefers-color-scheme:dark){")
    grounds, inks = [], []
    for part in map(rules, (light, dark[:-1])):
        grounds.append(part[".ground"].removeprefix("fill:"))
        inks.append(part["svg"].removeprefix("color:"))
    assert all(contrast(a, b) > 10 for a, b in zip(grounds, inks, strict=True))
    first = ET.fromstring(svg)[1]
    assert first.get("class") == "ground", "under everything else"
    blue = {name for name, rule in rules(light).items() if STYLES[0].colour.lower() in rule}
    changed = {name: rule for name, rule in rules(dark[:-1]).items() if name in blue}
    assert blue
    assert set(changed) == blue
    assert all(_files.BRIGHT in rule and _files.BLUE not in rule for rule in changed.values())
    assert contrast(_files.BRIGHT, grounds[1]) > 4.5
    for style in STYLES[1:]:
        assert contrast(style.colour, grounds[1]) > 3.5
    assert all(contrast(style.colour, grounds[0]) > 2.1 for style in STYLES)


def test_the_same_figure_gives_the_same_drawing(svg):
    assert drawing() == svg


# --- what they show -----------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.09))
def test_names_are_as_near_as_can_be(values, apart):
    values = sorted(values)
    room, steps = 1 - (len(values) - 1) * apart, apart * np.arange(len(values))
    regression = IsotonicRegression(y_min=0, y_max=room)
    expected = regression.fit_transform(np.arange(len(values)), np.array(values) - steps) + steps
    np.testing.assert_allclose(plots.spread(values, apart), expected, atol=1e-9)


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


def test_the_heat_map_is_sorted_and_has_a_scale():
    record = read_record("corruption", RESULTS / "small")
    figure = page_figures.corruption(record)
    axes, bar = figure.axes
    assert "rank correlation" in bar.get_xlabel()
    (mesh,) = axes.collections
    assert mesh.get_clim() == (-1, 1)
    means = mesh.get_array()[:, -1]
    assert all(a >= b for a, b in pairwise(means))
    names = [text.get_text() for text in axes.get_yticklabels()]
    (part, *_) = page_figures.parts(record)
    for name, mean in zip(names, means, strict=True):
        values = [r["metrics"]["severity mean"]["value"] for r in part.methods[name]]
        assert mean == pytest.approx(np.mean(values))
    assert len(axes.texts) == mesh.get_array().size
    shown = {"\N{MINUS SIGN}.50": -0.5, "1.00": 1.0, ".00": 0.0, "n/a": math.nan}
    one = plots.heat_plot(list("abcd"), {"row": list(shown.values())}, "label")
    assert [text.get_text() for text in one.axes[0].texts] == list(shown)
    for text, value in zip(one.axes[0].texts, shown.values(), strict=True):
        ink = INK if math.isnan(value) else plots.letters_on(plots.diverging(value))
        assert text.get_color() == ink


@pytest.fixture(scope="module")
def retrieval():
    return read_record("retrieval")["rows"][-2:]


def test_promises_say_how_often_they_were_made(retrieval):
    coverages = [1 - alpha for alpha in ALPHAS]
    figure = plots.promises_plot(retrieval, PROMISES, coverages)
    shown = {}
    for axes in figure.axes:
        if not axes.axison:
            continue
        target = axes.lines[0].get_xdata()[0] / 100
        kind = "precision {:g} obtained" if "answers" in axes.get_xlabel() else "sets {:g} coverage"
        shown[key := kind.format(target)] = axes
        made = [text.get_text() for text in axes.texts]
        values = [row.get(key, {"n": 0}) for row in retrieval]
        expected = [
            f"{of['n']} of {row['splits']}" for of, row in zip(values, retrieval, strict=True)
        ]
        assert made == [*expected, "made in"]
        drawn = {marks[0].get_ydata()[0]: marks for marks in axes.containers}
        assert set(drawn) == {y for y, of in enumerate(values) if of["n"]}
        for y, marks in drawn.items():
            assert marks[0].get_xdata()[0] == pytest.approx(100 * values[y]["mean"])
            (segment,) = marks[2][0].get_segments()
            assert np.ptp(segment[:, 0]) == pytest.approx(200 * values[y]["sd"])
    wanted = [f"precision {t:g} obtained" for t in PROMISES]
    wanted += [f"sets {t:g} coverage" for t in coverages]
    assert set(shown) == {
        key for key in wanted if any(row.get(key, {"n": 0})["n"] for row in retrieval)
    }


def test_intervals_of_a_rank_correlation_hold_the_truth():
    """Of a normal law: 6 / pi asin(r / 2) for a correlation r."""
    random, r, n, held = np.random.default_rng(0), 0.7, 60, 0
    truth = 6 / np.pi * np.arcsin(r / 2)
    for _ in range(1_000):
        x, y = random.standard_normal((2, n))
        low, high = rank_interval(spearmanr(x, r * x + math.sqrt(1 - r**2) * y).statistic, n)
        held += low < truth < high
    assert held / 1_000 == pytest.approx(0.95, abs=0.02)
