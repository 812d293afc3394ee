"""The page, tables and figures of collected runs, from a trimmed record of real runs on digits."""

from __future__ import annotations

import copy
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as scipy_t

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
from benchmarks.records import RESULTS, Store, read_record
from benchmarks.registry import main, parser
from benchmarks.report import cells, charts, families
from benchmarks.report.cells import cost_table, quality_table
from benchmarks.report.collect import _short, collect, compressed, write
from benchmarks.report.page import render
from benchmarks.report.reading import Part, described, summary
from benchmarks.report.series import chosen
from benchmarks.report.statistics import difference, leaders

DATA = Path(__file__).parent / "data" / "lam.json"
TASK = "digits"
SIX = ["metric learning, 1/norm", "laplace", "laplace, tuned", "k-nn distance", "deep ensemble",
       "mcinfonce"]  # fmt: skip


@pytest.fixture
def record():
    return json.loads(DATA.read_text())


def renamed(record, protocol, names):
    """The record as if another protocol had given these names to the numbers of R-AUROC."""
    found = copy.deepcopy(record)
    found["protocol"] = protocol
    for row in found["rows"]:
        row["metrics"] |= {name: dict(row["metrics"]["r_auroc"]) for name in names}
    return found


class Page(HTMLParser):
    """Tags with their attributes; fails where one is not closed."""

    VOID = ("meta", "img", "br", "hr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def row_of(html, method):
    """The first table row of a method, as text of its cells."""
    found = re.search(rf'<tr><th scope="row">{re.escape(method)}</th>(.*?)</tr>', html)
    return re.findall(r"<td(.*?)</td>", found[1])


def test_the_page_is_whole_and_asks_for_nothing(record):
    html = render([record, read_record("recovery")])
    page = Page(html)
    requested = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "data", "poster", "action")
    ]
    assert requested
    assert all(value.startswith(("#", "data:image/")) for value in requested)
    without_namespaces = html.replace("http://www.w3.org", "")
    assert "http:" not in without_namespaces
    assert "https:" not in html
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"}
    assert not re.search(r"@import|url\((?!#)", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert len(html) < 200_000


def test_links_of_the_contents_lead_somewhere_and_ids_are_unique(record):
    page = Page(render([record, renamed(record, "url", [])]))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [attributes["href"][1:] for tag, attributes in page.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert {"lam", "lam-0", "url", "url-0", "top"} <= set(links) <= set(ids)


def test_every_chart_is_read_out_and_explained(record):
    html = render([record])
    drawn = [a for tag, a in Page(html).tags if tag == "svg" and a.get("class") == "plot"]
    # forest, plane, sparsification, risk, reliability, ROC, four histograms
    assert len(drawn) == 10
    assert all(a["role"] == "img" and a["aria-label"].startswith(TASK) for a in drawn)
    assert html.count('<p class="how">') == len(drawn) == html.count("<b>Good:</b>") - 1
    assert "nan" not in re.sub(r"base64,[^\"]*", "", html)


def test_missing_protocols_are_left_out(record):
    html = render([record])
    assert 'id="lam"' in html
    assert not re.search('id="(url|fewshot|human|corruption|pretrained|recovery)"', html)
    empty = {**record, "protocol": "url", "rows": []}
    assert 'id="url"' not in render([record, empty])
    assert "Posteriors that are known" in render([read_record("recovery")])


def test_only_leaders_are_bold(record):
    html = render([record])
    keys = list(dict.fromkeys(key for row in record["rows"] for key in row["metrics"]))
    for method in SIX:
        found = row_of(html, method)[1:]  # after the seeds
        for key, text in zip(keys, found, strict=True):
            near = record["comparisons"][TASK][key]["leaders"]
            crowded = key == "ece"  # three of the four that have votes
            assert ('class="best"' in text) == (method in near and not crowded), (method, key)


def test_nothing_is_bold_where_more_than_half_lead(record):
    comparison = record["comparisons"][TASK]["r_auroc"]
    comparison["leaders"] = SIX[:3]
    assert Part(record, TASK).bold("r_auroc") == SIX[:3]
    assert "more than half of them: ECE." in render([record])
    comparison["leaders"] = SIX[:4]
    assert Part(record, TASK).bold("r_auroc") == []
    assert "more than half of them: R-AUROC; ECE." in render([record])


def test_numbers_are_means_with_standard_errors(record):
    for row in record["rows"]:
        row["metrics"]["r_auroc"] = {"value": 0.7 + 0.1 * row["seed"], "low": 0.6, "high": 0.9}
    seeds, *found = row_of(render([record]), "laplace")
    assert "<span>2</span>" in seeds
    assert found[2] == "><span>0.750</span><small>± 0.050</small>"
    record["rows"] = [row for row in record["rows"] if row["seed"] == 0]
    assert (
        row_of(render([record]), "laplace")[3] == "><span>0.700</span><small>0.600 to 0.900</small>"
    )


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_what_is_undefined_is_shown_as_such(record, nothing):
    for row in record["rows"]:
        if row["method"] == "laplace":
            row["metrics"]["r_auroc"] = {"value": nothing}
        row["cost"]["fit"]["peak_mb"] = nothing
        for curve in row["curves"].get("roc", {}).values():
            curve["tpr"][3] = nothing
    for ends in record["comparisons"][TASK]["r_auroc"]["laplace minus"].values():
        ends["low"] = nothing
    html = render([record])
    assert "<span>n/a</span>" in row_of(html, "laplace")[3]
    assert "nan" not in re.sub(r"base64,[^\"]*", "", html)
    assert "r_auroc" not in quality_table(record, TASK, ["r_auroc"])
    assert "| laplace | n/a |" in quality_table(record, TASK, ["r_auroc"])
    assert "laplace minus" not in html


def test_a_metric_of_no_method_leaves_its_charts_out(record):
    for row in record["rows"]:
        row["metrics"] = {"recall@1": {"value": None}}
    record["comparisons"] = {}
    html = render([record])
    assert "against cost" not in html
    assert html.count("<span>n/a</span>") >= len(SIX)


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


def test_examples_are_shown_and_made_light(record):
    html = render([record])
    images = [a for tag, a in Page(html).tags if tag == "img"]
    assert len(images) == 10  # a query and four neighbours at each end
    uri = record["rows"][2]["pictures"]["certain"][0]["pictures"][0]["uri"]
    assert compressed(uri) == uri  # a hundred bytes stay as they are
    png = noisy_png()
    assert compressed(png).startswith("data:image/webp;base64,")
    assert len(compressed(png)) < len(png) / 2


def noisy_png():
    import torch

    from laplace_metric.cli.pages._html import data_uri

    return data_uri(torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)))


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
    style = next(iter(chosen(Part(json.loads(DATA.read_text()), TASK), "r_auroc").values()))
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


def test_markdown_tables(record):
    comparison = record["comparisons"][TASK]["r_auroc"]["leaders"]
    text = quality_table(record, TASK, ["r_auroc", "ece"], ["laplace", *comparison])
    header, _, laplace, best = text.splitlines()
    assert header == "| method | R-AUROC ↑ | ECE ↓ |"
    found = summary(Part(record, TASK).methods["laplace"], "r_auroc")
    words = f"{found.mean:.3f} ± {found.error:.3f}".replace("0.", ".")
    assert laplace.startswith(f"| laplace | {words} | .")
    assert best.startswith("| k-nn distance | **.")
    assert best.endswith("** | n/a |")
    assert len(cost_table(record, TASK).splitlines()) == 2 + len(SIX)


def test_negative_and_unknown_metrics(record):
    for row in record["rows"]:
        row["metrics"]["crop rank"] = {"value": -0.25}
        row["metrics"]["sharpness"] = {"value": 12.5}
    assert "| -.250 ± .000 | 12.500 ± .000 |" in quality_table(
        record, TASK, ["crop rank", "sharpness"]
    )
    assert described("sharpness").direction == 0
    assert described("severity snow") == described("severity")._replace(name="severity snow")
    assert described("severity pooled").name == "severity, all images"
    assert described("k-nn+u auroc mnist").name == "k-nn+u AUROC mnist"
    assert cells.cell(summary(record["rows"][:1], "crop rank")).text == "\u22120.250"


KINDS = ("png", "svg")


def test_figures(record, tmp_path):
    both = renamed(record, "corruption", ["severity snow", "severity mean"])
    for name, content in (("lam", record), ("corruption", both)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    written = page_figures.write(tmp_path, tmp_path)
    names = ["lam", "corruption", "cost"]
    assert [path.name for path in written] == [f"{n}.{kind}" for n in names for kind in KINDS]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<svg") for path in written)
    assert all(path.stat().st_size < 120_000 for path in written)


# --- statistics ---------------------------------------------------------------------------------


def runs(method, replicates, values=None):
    """Rows of a method: a list of replicates for each seed."""
    values = values or [float(np.mean(found)) for found in replicates]
    return [
        {"method": method, "seed": seed,
         "metrics": {"m": {"value": value, "replicates": list(found)}}}
        for seed, (found, value) in enumerate(zip(replicates, values, strict=True))
    ]  # fmt: skip


@pytest.fixture
def drawn():
    """Differences whose spread comes from seeds and queries alike: [seed, replicate]."""
    noise = np.random.default_rng(1).normal(0, 0.08, (3, 40))
    return np.array([[-0.05], [0.05], [0.15]]) + noise


def test_the_interval_has_seeds_and_queries_in_it(drawn):
    found = difference(runs("a", drawn), runs("b", np.zeros_like(drawn)), "m")
    seeds = scipy_t.interval(0.95, 2, drawn.mean(), drawn.mean(1).std(ddof=1) / 3**0.5)
    queries = 1.96 * drawn.mean(0).std(ddof=1)
    half = np.hypot((seeds[1] - seeds[0]) / 2, queries)
    assert found["difference"] == pytest.approx(drawn.mean())
    assert found["high"] - found["difference"] == pytest.approx(half)
    assert found["difference"] - found["low"] == pytest.approx(half)
    one = difference(runs("a", drawn)[:1], runs("b", np.zeros_like(drawn))[:1], "m")
    assert one["high"] - one["difference"] == pytest.approx(1.96 * drawn[0].std(ddof=1))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 2.0])
def test_intervals_hold_the_truth(ratio):
    """Three seeds that share their queries; ratio: noise of queries over that of seeds."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        seeds, queries = rng.normal(0, 1, (3, 1)), rng.normal(0, ratio)
        drawn = seeds + queries + rng.normal(0, ratio, (1, 200)) + rng.normal(0, 1e-9, (3, 200))
        values = (seeds[:, 0] + queries).tolist()
        found = difference(runs("a", drawn, values), runs("b", 0 * drawn), "m")
        held += found["low"] <= 0 <= found["high"]
    assert held / 400 > 0.93


def test_identical_methods_cannot_be_told_apart_and_distant_ones_can(drawn):
    same = difference(runs("a", drawn), runs("b", drawn), "m")
    assert (same["difference"], same["low"], same["high"]) == (0.0, 0.0, 0.0)
    apart = difference(runs("a", drawn + 1), runs("b", drawn), "m")
    assert (apart["low"], apart["high"]) == pytest.approx((1, 1))  # the resamples are paired
    of = {"a": runs("a", drawn + 1), "b": runs("b", drawn), "c": runs("c", drawn + 1)}
    assert leaders(of, "m", higher=True) == ("a", ["a", "c"])
    assert leaders(of, "m", higher=False) == ("b", ["b"])


def test_only_common_seeds_are_compared(drawn):
    first, second = runs("a", drawn), runs("b", drawn)[1:]
    assert difference(first, second, "m") == {"difference": 0.0, "low": 0.0, "high": 0.0}
    assert difference(first[:1], second, "m") == {}


def test_collected_runs_are_compared_by_their_intervals(drawn):
    """As if the queries of both were others: wider than the paired interval of the same runs."""
    values = [0.0, 0.1, 0.2]
    a, b = runs("a", drawn, values), runs("b", drawn + 1, [0.0, 0.0, 0.0])
    paired = difference(a, b, "m")
    for row in a:
        cell = row["metrics"]["m"]
        cell |= {"low": cell["value"] - 0.3, "high": cell["value"] + 0.3}
        del cell["replicates"]
    assert difference(a, b, "m") == {}
    for row in b:
        row["metrics"]["m"] |= {"low": -0.4, "high": 0.4}
    found = difference(a, b, "m")
    between = scipy_t.ppf(0.975, 2) * np.std(values, ddof=1) / 3**0.5
    half = np.hypot(between, np.hypot(0.3, 0.4))
    assert found["difference"] == paired["difference"]
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half)
    assert leaders({"a": a, "b": b}, "m", higher=True)[0] == "a"
    assert leaders({"a": []}, "m", higher=True) == ("", [])


def test_a_seed_without_replicates_still_counts(drawn):
    """Two paired seeds have a t of 12.7 in place of 4.3: the intervals of all three are better."""
    a, b = runs("a", drawn, [0.1, 0.12, 0.11]), runs("b", drawn, [0.5, 0.53, 0.5])
    for row in a + b:
        cell = row["metrics"]["m"]
        cell |= {"low": cell["value"] - 0.02, "high": cell["value"] + 0.02}
    whole = difference(a, b, "m")
    del a[0]["metrics"]["m"]["replicates"]
    found = difference(a, b, "m")
    assert found["difference"] == pytest.approx(-0.4)
    between = scipy_t.ppf(0.975, 2) * np.std([0.4, 0.41, 0.39], ddof=1) / 3**0.5
    half = np.hypot(between, np.hypot(0.02, 0.02))
    assert found["high"] - found["difference"] == pytest.approx(half)
    assert whole["high"] - whole["low"] < 2 * half
    assert leaders({"a": a, "b": b}, "m", higher=True) == ("b", ["b"])


def test_undefined_differences_become_null():
    assert _short({"low": math.nan, "high": 0.123456}) == {"low": None, "high": 0.1235}


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def cache(record, tmp_path):
    """A cache with the runs of the record, as the runner leaves them."""
    store = Store(tmp_path / "runs-smoke")
    for row in record["rows"]:
        whole = {**row, "size": record["settings"], "environment": record["environment"]}
        store.write(whole, "lam", TASK, row["method"], row["seed"])
    for one in record["tuned"]:
        store.write(one, "tuned", one["task"], one["method"])
    return tmp_path


def test_the_command_collects_and_renders(cache, capsys):
    where = ["--json", str(cache / "json"), "--out", str(cache / "page.html")]
    assert main(["report", "--cache", str(cache), *where]) == 0
    assert [path.name for path in (cache / "json").iterdir()] == ["lam.json"]
    page = (cache / "page.html").read_text()
    assert 'id="lam"' in page
    (cache / "page.html").unlink()
    assert main(["report", "--from-json", *where]) == 0
    assert (cache / "page.html").read_text() == page
    assert f"lam.json: {2 * len(SIX)} runs" in capsys.readouterr().out


def test_a_collected_record_survives_writing(cache, tmp_path):
    content = collect(Store(cache / "runs-smoke"), "lam", "smoke")
    write(content, tmp_path / "lam.json")
    assert render([json.loads((tmp_path / "lam.json").read_text())]) == render([content])


@pytest.mark.parametrize("words", [["--cache", "no"], ["--from-json", "--json", "no"]])
def test_nothing_to_report_is_one_line(words, tmp_path, capsys):
    assert main(["report", *words, "--out", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().out.startswith("error: no")
    assert not list(tmp_path.iterdir())


def test_runs_of_a_method_that_is_no_more_are_named(cache, record, capsys):
    store = Store(cache / "runs-smoke")
    store.write({**record["rows"][0], "method": "old"}, "lam", TASK, "old", 0)
    options = ["--cache", str(cache), "--json", str(cache / "j"), "--out", str(cache / "p.html")]
    assert main(["report", *options]) == 2
    assert "are no more: old. Delete" in capsys.readouterr().out
    assert not (cache / "j").exists()


def test_protocols_still_come_first(capsys):
    assert parser().parse_args(["lam", "url"]).protocols == ["lam", "url"]
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "`report`" in capsys.readouterr().out


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
