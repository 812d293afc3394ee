"""The report: its page, its charts, its statistics, its command, and the pages of the methods."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_rel
from scipy.stats import t as scipy_t

from benchmarks.definitions import COMPARISON
from benchmarks.methods import METHODS
from benchmarks.plots import (
    forest_plot,
)
from benchmarks.records import RESULTS, Store, read_record, thousandths, work_folder
from benchmarks.registry import main
from benchmarks.report import charts, papers
from benchmarks.report import three_numbers as numbers
from benchmarks.report.cells import quality_table
from benchmarks.report.collect import records
from benchmarks.report.method_pages import BASELINES, FILES, method_page, title
from benchmarks.report.method_table import METHOD_NOTES
from benchmarks.report.page import render
from benchmarks.report.reading import Part, summary
from benchmarks.report.statistics import difference, leaders
from benchmarks.report.three_numbers import EPISTEMIC, MATCH, Case, Values
from benchmarks.report.verdict import quoted, verdict

DATA = Path(__file__).parent / "data" / "lam.json"


TASK = "digits"


SIX = ["metric learning, 1/norm", "laplace", "laplace, tuned", "k-nn distance", "deep ensemble",
       "mcinfonce"]  # fmt: skip


def read_digits():
    """The record of every test."""
    return json.loads(DATA.read_text())


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


@pytest.fixture
def record():
    return read_digits()


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


def test_only_leaders_are_bold(record):
    html = render([record])
    keys = list(dict.fromkeys(key for row in record["rows"] for key in row["metrics"]))
    for method in SIX:
        found = row_of(html, method)[1:]  # after the seeds
        for key, text in zip(keys, found, strict=True):
            near = record["comparisons"][TASK][key]["leaders"]
            crowded = key == "ece"  # three of the four that have votes
            assert ('class="best"' in text) == (method in near and not crowded), (method, key)


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


def test_the_forest_is_sorted_and_says_which_side_is_better(record):
    differences = Part(record, TASK).differences("r_auroc")
    (chart,) = charts.differences(Part(record, TASK), "r_auroc")
    assert chart.good.startswith("right of the solid zero line"), "more is better"
    assert len(differences) == len(SIX) - 1
    for direction in (1, -1):
        (axes,) = forest_plot(differences, "difference in R-AUROC", direction).axes
        names = [label.get_text() for label in axes.get_yticklabels()]
        values = [direction * differences[name][0] for name in names]
        assert sorted(names) == sorted(differences)
        assert values == sorted(values, reverse=True), "the best is on top"


@pytest.fixture
def cache(record, tmp_path):
    """A cache with the runs of the record, as the runner leaves them."""
    store = Store(work_folder(tmp_path, COMPARISON) / "runs-smoke")
    for row in record["rows"]:
        whole = {
            **row,
            "size": record["settings"],
            "environment": record["environment"],
        }
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


VARIANTS_OF_OTHERS = {"1/norm", "k-nn distance, features", "relative mahalanobis"}
NO_PAGE = {"__init__", "deterministic", "probvlm"}


"""The embedder as it is needs none; ProbVLM is of images and texts."""


def test_every_baseline_that_was_measured_has_a_page_and_a_title_of_its_own():
    measured = {
        row["method"]
        for path in (RESULTS / "small").glob("*.json")
        for row in read_record(path.stem, path.parent)["rows"]
    }
    without = {
        name
        for name in measured - set(METHOD_NOTES) - VARIANTS_OF_OTHERS
        if METHODS[name].group != "laplace"
    }
    assert not without, "give each a MethodNote in benchmarks/report/method_table.py"
    assert set(FILES) <= {path.stem for path in BASELINES.glob("*.py")} - NO_PAGE
    titles = [title(file) for file in FILES]
    assert len(set(titles)) == len(titles)
    assert all(2 < len(words) < 60 for words in titles)


@pytest.mark.parametrize(("file", "words"), [("nuq", "fit adds"), ("hib", "training takes")])
def test_the_cost_is_that_of_the_table_of_all_methods(file, words):
    """A post-hoc one adds to the training; the other has its own."""
    table = (BASELINES / "README.md").read_text()
    (line,) = re.findall(rf"^\| \[{file}\].*$", table, flags=re.M)
    added, training, query = (cell.strip() for cell in line.split("|")[5:8])
    takes = f"Its {words} {training.removeprefix('+ ')}, a query {query} that of"
    assert takes in method_page(file)
    assert f"; {added} numbers added." in method_page(file)


def test_the_numbers_are_means_and_places_over_the_seeds():
    """R-AUROC of the deep ensemble on birds, from the rows themselves."""
    rows = [
        row for row in read_record("url", RESULTS / "small")["rows"]
        if row["task"] == "cub"
    ]  # fmt: skip
    of: dict[str, list[float]] = {}
    for row in rows:
        value = row["metrics"].get("r_auroc", {}).get("value")
        if value is not None and row["method"] not in ("laplace, near", "laplace, far"):
            of.setdefault(row["method"], []).append(value)
    full = {name: np.array(values) for name, values in of.items() if len(values) == 3}
    ours = full["deep ensemble"]
    place = 1 + sum(values.mean() > ours.mean() for values in full.values())
    error = ours.std(ddof=1) / 3**0.5
    expected = f"{ours.mean():.3f} ± {error:.3f} ({place} of {len(full)})".replace("0.", ".")
    (line,) = re.findall(r"^\| birds, classes never.*$", method_page("deep_ensemble"), flags=re.M)
    assert line.split(" | ")[2] == expected


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


VALUES = {
    MATCH: (0.90, 0.92, 0.91),
    EPISTEMIC: (0.70, 0.71, 0.72),
    "laplace, near": (0.62, 0.62, 0.62),
    "laplace, far": (0.60, 0.60, 0.60),
    "laplace": (0.80, 0.85, 0.81),
    "nuq": (0.86, 0.87, 0.88),
    "elk": (0.99,),
}


def rows(_case):
    """R-AUROC as above; the OOD sets a little less and a little more than it."""
    return [
        {
            "method": method,
            "seed": seed,
            "metrics": {
                "r_auroc": {"value": x},
                "auroc a": {"value": x - 0.02},
                "auroc b": {"value": x + 0.02},
            },
        }
        for method, of in VALUES.items()
        for seed, x in enumerate(of)
    ]


@pytest.fixture(autouse=True)
def one_case(monkeypatch):
    monkeypatch.setattr(numbers, "CASES", (Case("lam", "task", "a task", True),))
    monkeypatch.setattr(numbers, "rows_of", rows)


def test_the_best_other_has_every_seed():
    of = numbers.values(rows(None), ["r_auroc"])
    assert "elk" not in of
    assert numbers.best_other(of).method == "nuq"
    both = numbers.values(rows(None), numbers.ood_metrics(rows(None)))
    assert both["nuq"].mean == pytest.approx(0.87)  # of both OOD sets


def test_bold_is_what_a_paired_t_test_calls_significant():
    a, b = (Values(n, dict(enumerate(VALUES[n]))) for n in (MATCH, "nuq"))
    assert numbers.significant(a, b) == (ttest_rel(VALUES[MATCH], VALUES["nuq"]).pvalue < 0.05)
    cells = numbers.pair(a, b)
    assert cells == ["**.910 ± .006**", ".870 ± .006 (nuq)"]
    near = Values("near", {0: 0.93, 1: 0.89, 2: 0.91})
    assert not numbers.significant(a, near)
    assert "**" not in "".join(numbers.pair(a, near))
    assert numbers.pair(b, a)[1] == "**.910 ± .006** (laplace, match)"
    assert Values("x", {0: 0.1, 1: 0.3}).text == ".200 ± .100"


def test_tables_hold_every_case():
    assert "| a task | yes | **.910" in numbers.front()
    pairs = numbers.pairs()
    line = "| a task: a | yes | .690 ± .006 | .600 | .580 | -0.160 | -0.270 | .800 |"
    assert line in pairs
    assert "| a task: b |" in pairs


def test_intervals_of_rank_correlations_resample_methods():
    g = np.random.default_rng(0)
    x = g.normal(size=30).round(1)  # with ties
    y = x + g.normal(size=30)
    rows = np.random.default_rng(0).integers(30, size=(papers.RESAMPLES, 30))
    each = [spearmanr(x[row], y[row]).statistic for row in rows[:200]]
    low, high = papers.interval(x, y)
    assert low < spearmanr(x, y).statistic < high
    assert [low, high] == pytest.approx(np.quantile(each, (0.025, 0.975)), abs=0.06)
    assert papers.interval(x, -y) == pytest.approx((-high, -low), abs=1e-9)


def test_proxies_leave_out_what_reads_labels(monkeypatch):
    methods = ("laplace", MATCH, "vim", "nuq")
    rows = [
        {"task": task, "method": name, "metrics": {"r_auroc": {"value": k + seed}}}
        for k, name in enumerate(methods)
        for task in ("cub", "omniglot")
        for seed in (0, 1)
    ]
    monkeypatch.setattr(papers, "read_record", lambda *_: {"rows": rows})
    assert papers.means(papers.Number("url", "cub", "r_auroc")) == {
        "laplace": 0.5,
        "vim": 2.5,
        "nuq": 3.5,
    }


def test_the_verdict_says_whether_the_data_can_tell():
    record = read_record("lam", RESULTS / "small")
    said = " ".join(verdict(record))
    for task, of in record["comparisons"].items():
        best, leaders = of["r_auroc"]["best"], of["r_auroc"]["leaders"]
        assert f"{task}: {quoted(best)} has the best R-AUROC." in said
        can = "Yes, 3 seeds can tell it" if leaders == [best] else "No, 3 seeds cannot tell it"
        assert can in said.split(f"{task}: ")[1]
        rivals = {
            name: summary(rows, "r_auroc").mean
            for name, rows in Part(record, task).methods.items()
            if not name.startswith("laplace")
        }
        rival = max(rivals, key=rivals.get)
        told = f"The best rival, {quoted(rival)}, has {thousandths(rivals[rival])}."
        assert (told in said) == best.startswith("laplace")
    assert f"<li>{verdict(record)[0]}"[:60] in render([record])


def test_a_verdict_without_rivals_says_what_ours_has():
    record = read_record("lam", RESULTS / "small")
    ours = [row for row in record["rows"] if row["method"].startswith("laplace")]
    (first, *_) = verdict({**record, "rows": ours})
    assert "It has " in first
    assert "rival" not in first


def test_only_the_record_of_the_pages_is_shown_with_recovery(tmp_path):
    source = RESULTS / "small"
    (tmp_path / "lam.json").write_text((source / "lam.json").read_text())
    known = [["setting" in record["rows"][0] for record in records(f)] for f in (tmp_path, source)]
    assert known == [[False], [*[False] * (len(known[1]) - 1), True]]
