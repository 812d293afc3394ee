"""The README runs, and its numbers are those of the committed JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from benchmarks import tables
from benchmarks.retrieval import forty
from laplace_metric import LaplaceEmbedder, Rule
from laplace_metric.errors import UnfamiliarQueriesWarning
from tests import pages

README = Path(__file__).parent.parent / "README.md"
RETRIEVAL = README.parent / "benchmarks" / "retrieval" / "README.md"
BASELINES = README.parent / "baselines" / "README.md"


DOCS = README.parent / "docs"
OWN_TESTS = {
    *("serve.md", "engines.md", "scale.md", "folders.md", "decisions.md"),
}
"""Pages whose code, if they have any, runs in a test of its own."""
PAGES = [README, BASELINES, *sorted(p for p in DOCS.rglob("*.md") if p.name not in OWN_TESTS)]
WIDEST = 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_runs_in_order(page, tmp_path, monkeypatch):
    """What a block of text below a block of Python shows is what it prints."""
    monkeypatch.chdir(tmp_path)
    for shown, printed in pages.shown_and_printed(page):
        assert shown == printed, f"python -m tests.pages {page} stores what is printed now"


@pytest.mark.parametrize(
    "page", [README, BASELINES, *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem
)
def test_a_block_that_prints_shows_what_it_prints(page):
    assert not pages.printing_without_output(page)


@pytest.mark.parametrize(
    "page", [README, BASELINES, *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem
)
def test_code_is_as_wide_as_a_page(page):
    for block in re.findall(r"```(?:python|py|console)\n(.*?)```", page.read_text(), flags=re.S):
        assert max(map(len, block.splitlines())) <= WIDEST


def test_every_console_block_of_the_first_page_is_run_by_a_test():
    """The demo and the tests themselves."""
    text = README.read_text()
    marks = re.findall(r"<!-- (.*) -->\n```console\n", text)
    assert marks == ["demo command", "test command"]
    assert text.count("```console") == len(marks)


@pytest.mark.parametrize("page", [README, *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    """Files, and headings in them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """What headings of a page are linked as."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.parent.name)
def test_tables_are_those_of_the_json(page):
    text = page.read_text()
    assert "<!-- table:" in text
    assert tables.filled(text) == text


def test_every_page_that_marks_a_table_is_filled():
    marked = {p for p in [README, *DOCS.rglob("*.md")] if "<!-- table:" in p.read_text()}
    assert marked <= {*tables.PAGES}


def test_the_reference_lists_every_method_of_the_front_door():
    """In the order of a page, not of the files that it is made of."""
    text = (DOCS / "reference" / "embedder.md").read_text()
    listed = re.findall(r"^ {8}- (\w+)$", text.split(".LaplaceEmbedder")[1], flags=re.M)
    public = {name for name in dir(LaplaceEmbedder) if not name.startswith("_")}
    assert sorted(listed) == sorted({*public, "__call__"})


def test_the_site_begins_with_its_guides_and_each_has_a_picture():
    yaml = pytest.importorskip("yaml")
    settings = yaml.safe_load((README.parent / "mkdocs.yml").read_text())
    bars = {name: pages for part in settings["nav"] for name, pages in part.items()}
    assert list(bars)[:2] == ["Home", "Use it"]
    for part in [*bars["Use it"], *bars["Run it"]]:
        (name,) = part.values()
        assert name.startswith("examples/") or "![" in (DOCS / name).read_text(), name
    (shim,) = settings["extra"]["polyfills"]  # without it no search from disk
    assert (DOCS / shim).is_file()


def test_the_caption_of_twenty_queries_is_that_of_the_record():
    record = json.loads((README.parent / "benchmarks/results/twenty.json").read_text())
    of, text = record["summary"], RETRIEVAL.read_text()
    assert f"of {of['queries']} new emoji" in text
    share = f"{of['nearest right'] / of['queries']:.0%} of the nearest items are right"
    assert share.replace("%", " %") in text
    right = f"{of['answers right'] / of['answered']:.0%} of the guard's {of['answered']} answers"
    assert right.replace("%", " %") in text
    assert f"({of['precision']:.0%} guaranteed)".replace("%", " %") in text
    right, answered = of["answers right"], of["answered"]
    exact = binomtest(right, answered, of["precision"], "less")
    upper = f"interval ends at {exact.proportion_ci(method='exact').high:.1%}:".replace("%", " %")
    assert upper in text
    assert f"of {answered} would be in {exact.pvalue:.1%} of cases".replace("%", " %") in text


def test_the_caption_of_forty_guards_is_that_of_the_record():
    record = json.loads((README.parent / "benchmarks/results/forty.json").read_text())
    kept = [forty.kept([r for r in record["rows"] if r["set"] == s], 0.9) for s in forty.SETS]
    (one, of), (other, _) = kept
    text = README.read_text()
    assert f"{one} and {other} guards of 90 % keep it" in text
    for page in (text, RETRIEVAL.read_text()):
        assert f"{one + other} of {2 * of} keep 90 %" in page
    assert of == forty.SPLITS == 40


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.UnfamiliarQueriesWarning")
def test_the_numbers_of_the_first_page_are_those_of_its_guard():
    text = README.read_text()
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        exec(block, scope)
    guard, new = scope["guard"], scope["new"]
    queries, truth = new.pixels().flatten(1), new.labels.numpy()
    with pytest.warns(UnfamiliarQueriesWarning) as warned:
        answers = guard.ask(queries)
    (share,) = re.findall(r"queries \((\d+)%", str(warned[0].message))
    assert f"warns: {share} % of these digits are unlike the items (5 % expected)" in text
    answered = answers.answered
    plain = guard.index.ask(queries, Rule.at(0, alpha=None)).label
    covered = f"{guard.rule.coverage:.0%}".replace("%", " %")
    assert f"The guard expected to answer {covered}." in text
    assert not guard.rule.proven
    assert f"| every query answered | 100 % | {100 * (plain == truth).mean():.1f} % |" in text
    kept = 100 * (answers.label[answered] == truth[answered]).mean()
    assert f"| guard at 99.5 % | {100 * answered.mean():.1f} % | {kept:.1f} % |" in text
    assert kept >= 99
