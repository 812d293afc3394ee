"""The charts of the page and the figures of the same runs."""

from __future__ import annotations

import copy
import json
import math
import re

import numpy as np
import pytest

from benchmarks import page_figures
from benchmarks.plots import (
    Axis,
    Series,
    diverging,
    forest_plot,
    histogram_plot,
    letters_on,
    line_plot,
)
from benchmarks.plots._curves import around
from benchmarks.records import RESULTS, read_record
from benchmarks.report import charts, families
from benchmarks.report.page import render
from benchmarks.report.reading import Part
from benchmarks.report.series import chosen
from tests.benchmarks.reports import SIX, TASK, read_digits, renamed


@pytest.fixture
def record():
    return read_digits()


KINDS = ("png", "svg")


def test_few_shots_become_curves(record):
    keys = [f"r_auroc {n} shots" for n in (0, 1, 2, 5, 10)]
    part = Part(renamed(record, "fewshot", keys[::-1]), TASK)
    assert list(families.families(part)["r_auroc"].items()) == list(
        zip((0, 1, 2, 5, 10), keys, strict=True)
    )
    (chart,) = families.few_shot(part, chosen(part, "r_auroc 5 shots"))
    assert chart.title == "R-AUROC"
    assert len(chart.figure.legends[0].get_texts()) == 6
    assert [key for key in families.ordered(part) if "shots" in key][:2] == [keys[-1], keys[-2]]


def test_severities_become_a_heat_map(record):
    part = Part(
        renamed(record, "corruption", ["severity mean", "severity snow", "severity pooled"]), TASK
    )
    found = families.heat(part)
    assert found.columns == ["snow", "mean"]
    assert [name for name, _ in found.lines] == SIX
    assert all(len(line) == 2 for _, line in found.lines)
    html = render([part.record])
    assert 'class="wide heat"' in html
    columns = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', html)
    assert any(name.startswith("severity, mean") for name in columns)
    assert not any("snow" in name and "<span>" not in name for name in columns)  # in the map only
    assert families.heat(Part(record, TASK)) is None


def test_the_colours_of_the_heat_map():
    assert [diverging(v) for v in (-1.0, 0.0, 1.0, 7.0)] == [
        (178, 84, 26), (244, 244, 244), (32, 97, 158), (32, 97, 158)
    ]  # fmt: skip
    for value in np.linspace(-1, 1, 21):
        ground = diverging(float(value))
        light, text = (luminance(c) for c in (ground, (0,) * 3 if letters_on(ground) == "#000"
                                              else (255,) * 3))  # fmt: skip
        assert (max(light, text) + 0.05) / (min(light, text) + 0.05) > 4.4  # readable (WCAG)


def luminance(colour):
    linear = [(c / 255 / 12.92) if c < 11 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_methods_keep_their_look_whatever_was_run(record):
    part = Part(record, TASK)
    fewer = Part({**record, "rows": [r for r in record["rows"] if r["method"] != "laplace"]}, TASK)
    all_of, some = chosen(part, "r_auroc"), chosen(fewer, "r_auroc")
    assert list(all_of) == ["laplace", "laplace, tuned", "k-nn distance", "deep ensemble",
                            "metric learning, 1/norm", "mcinfonce"]  # fmt: skip
    assert len({style.colour for style in all_of.values()}) == 6
    assert some["k-nn distance"] == all_of["k-nn distance"]


def test_limits_hold_everything_finite():
    for values in ([0.5, 0.5], [], [math.nan, 3.0]):
        low, high = around(values)
        assert low < high
        assert all(low < x < high for x in values if math.isfinite(x))


def test_the_forest_is_sorted_and_has_every_interval(record):
    differences = Part(record, TASK).differences("r_auroc")
    assert len(differences) == len(SIX) - 1
    for direction in (1, -1):
        (axes,) = forest_plot(differences, "difference in R-AUROC", direction).axes
        names = [label.get_text() for label in axes.get_yticklabels()]
        values = [direction * differences[name][0] for name in names]
        assert sorted(names) == sorted(differences)
        assert values == sorted(values, reverse=True), "the best is on top"
        low, high = sorted(axes.get_ylim())
        assert axes.yaxis_inverted()
        assert low < 0 < len(names) - 1 < high
        drawn = {}
        for marks in axes.containers:
            segments = marks[2][0].get_segments()
            for (x, y), segment in zip(marks[0].get_xydata(), segments, strict=True):
                drawn[names[round(y)]] = (x, *segment[:, 0], marks.get_label())
        for name, (middle, start, end) in differences.items():
            assert drawn[name][:3] == pytest.approx((middle, start, end))
            better = direction * middle > 0
            verdict = "cannot be told" if start <= 0 <= end else (
                "clearly better" if better else "clearly worse")  # fmt: skip
            assert drawn[name][3] == verdict
        assert axes.get_xlabel() == "difference in R-AUROC"
        (legend,) = axes.figure.legends
        assert {text.get_text() for text in legend.get_texts()} == {
            one[3] for one in drawn.values()
        }


def test_curves_have_a_legend_units_and_the_style_of_their_method(record):
    part = Part(record, TASK)
    styles = chosen(part, "r_auroc")
    sparse, risk, reliable = charts.own_errors(part, styles)
    for chart, x, y in (
        (sparse, "least certain queries removed", "recall@1 of the rest"),
        (risk, "queries answered", "wrong among them"),
        (reliable, "votes for the winner", "right"),
    ):
        (axes,) = chart.figure.axes
        assert (axes.get_xlabel(), axes.get_ylabel()) == (x, y)
        formatter = axes.yaxis.get_major_formatter()
        assert formatter(0.25, 0) == "25%"
        names = [text.get_text() for text in chart.figure.legends[0].get_texts()]
        methods = [name for name in names if name in styles]
        assert len(methods) >= 3, "three of the six have votes"
        colours = {line.get_label(): line.get_color() for line in axes.lines}
        assert all(colours[name] == styles[name].colour for name in methods if name in colours)
    assert "oracle, laplace" in [line.get_label() for line in sparse.figure.axes[0].lines]
    assert len(sparse.figure.axes[0].lines) == len(styles) + 2


def test_histograms_hold_every_share_and_bars_their_errors():
    figure = histogram_plot(
        [1.0, 10.0, 100.0], {"queries": [0.75, 0.25], "mnist": [0.0, 1.0]}, True
    )
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [list(patch.get_data().values) for patch in axes.patches] == [[0.75, 0.25], [0.0, 1.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["queries", "mnist"]
    style = next(iter(chosen(Part(read_digits(), TASK), "r_auroc").values()))
    one = Series("laplace", style, [0, 2], [0.5, math.nan], errors=[0.1, 0.2], sizes=[0.8, 0.8])
    (axes,) = line_plot([one], Axis("x", (-1.0, 3.0), ticks=(0.0, 2.0)), Axis("y")).axes
    assert axes.get_xlim() == (-1.0, 3.0)
    assert list(axes.get_xticks()) == [0.0, 2.0]
    (bars,) = axes.containers
    np.testing.assert_allclose(bars[2][0].get_segments()[0][:, 1], [0.4, 0.6])


def test_names_stand_beside_cost_and_quality(record):
    part = Part(record, TASK)
    (chart,) = charts.costs(part, "r_auroc")
    (axes,) = chart.figure.axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "CPU ms per query (log scale)"
    points = charts.cost_points(part, "r_auroc")
    marks = [tuple(line.get_xydata()[0]) for line in axes.lines]
    assert marks == [(one.cost, one.quality) for one in points]
    where = {text.get_text(): text.xy for text in axes.texts}
    assert where == {one.name: (one.cost, one.quality) for one in points}
    heights = {text.get_text(): text.xyann[1] for text in axes.texts}
    ranked = sorted(points, key=lambda one: one.quality)
    assert sorted(heights, key=heights.get) == [one.name for one in ranked]
    families = [text.get_text() for text in chart.figure.legends[0].get_texts()]
    assert families == list(dict.fromkeys(one.family for one in points))


def test_figures(record, tmp_path):
    both = renamed(record, "corruption", ["severity snow", "severity mean"])
    for name, content in (("lam", record), ("corruption", both)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    written = page_figures.write(tmp_path, tmp_path)
    names = ["lam", "corruption", "cost"]
    assert [path.name for path in written] == [f"{n}.{kind}" for n in names for kind in KINDS]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<svg") for path in written)
    assert all(path.stat().st_size < 120_000 for path in written)


def test_a_figure_shows_no_method_with_fewer_seeds_than_the_others():
    record = copy.deepcopy(read_record("lam", RESULTS / "small"))
    task = record["rows"][0]["task"]
    record["rows"] = [
        row
        for row in record["rows"]
        if row["task"] == task and (row["method"], row["seed"]) != ("vim", 0)
    ]
    shown = [
        text.get_text()
        for axes in page_figures.dots(record).axes
        for text in axes.get_yticklabels()
    ]
    assert "laplace" in shown
    assert "vim" not in shown
