"""The page and its tables, from a trimmed record of real runs on digits."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks.records import read_record
from benchmarks.report import cells
from benchmarks.report.cells import cost_table, quality_table
from benchmarks.report.collect import compressed
from benchmarks.report.page import render
from benchmarks.report.reading import Part, described, summary
from tests.benchmarks.reports import SIX, TASK, Page, read_digits, renamed, row_of


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

    from benchmarks.strips import data_uri

    return data_uri(torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)))


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
