"""The report: whole, self-contained, the same numbers everywhere."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from laplace_metric import plots
from laplace_metric._utils.files import json_text, require_writable, write_atomically
from laplace_metric.cli.demo._summary import numbers_of, overview, report_of
from laplace_metric.cli.pages import render, terminal_table
from laplace_metric.cli.pages._html import data_uri, gallery
from laplace_metric.cli.pages._rows import UNDEFINED, table_rows
from laplace_metric.errors import InputError
from laplace_metric.evaluation import roc_curve
from laplace_metric.plots import inline_svg

VOID = {"meta", "img", "link", "br", "hr"}
REQUESTING = ("src", "href", "xlink:href", "srcset", "data", "poster", "action")


class Page(HTMLParser):
    """Tags with their attributes, ids, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.ids = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(outcome):
    return report_of(outcome)


@pytest.fixture(scope="module")
def html(report):
    return render(report)


def test_the_page_is_well_formed_and_asks_for_nothing(html):
    page = Page(html)
    assert page.open == []
    assert len(html) < 1_500_000
    requested = [v for _, attrs in page.tags for k, v in attrs.items() if k in REQUESTING]
    assert requested
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in requested)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"}
    assert not re.search(r"@import|url\((?!#)", html)
    policy = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_ids_are_unique_and_every_reference_has_one(html):
    page = Page(html)
    assert len(page.ids) == len(set(page.ids)) > 100
    references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert references
    assert references <= set(page.ids)


def test_the_page_is_the_same_each_time_and_adapts_to_dark_mode(report, html):
    assert render(report) == html
    assert "prefers-color-scheme: dark" in html
    assert plots.INK not in html
    assert "currentColor" in html


def test_every_figure_and_table_is_there(html, report):
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    # known classes: 2 ROC, 3 histograms, sparsification, reliability; new classes: 1 ROC fewer
    assert tags.count("svg") == 7 + 6
    assert tags.count("table") == 2
    assert all(a.get("role") == "img" and a["aria-label"] for t, a in page.tags if t == "svg")
    for section in report.sections:
        assert section.title in html
        for row in table_rows(section.results):
            assert all(f"<span>{cell.text}</span>" in html for cell in row.cells)


def test_wrong_neighbours_are_marked_by_a_sign_too(html, report):
    section = report.sections[0]
    ends = gallery(section.results["Laplace"][0], section.images)
    pictures = [p for end in ends for strip in end for p in strip.pictures]
    assert len(pictures) == 2 * 5 * 6
    assert {p.right for p in pictures} == {None, True, False}
    for strip in (strip for end in ends for strip in end):
        query, *others = strip.pictures
        assert query.right is None
        assert all(p.right == (p.label == query.label) for p in others)
    assert html.count("<b>✓ </b>") == html.count('class="right"')
    assert html.count("<b>✗ </b>") == html.count('class="wrong"') > 0


def test_the_gallery_shows_the_ends_of_the_uncertainty(report):
    section = report.sections[0]
    result = section.results["Laplace"][0]
    certain, unsure = gallery(result, section.images)
    ordered = result.queries.uncertainty.sort().values
    assert [s.uncertainty for s in certain] == [f"{float(u):.3g}" for u in ordered[:5]]
    assert [s.uncertainty for s in unsure] == [f"{float(u):.3g}" for u in ordered.flip(0)[:5]]
    row = int(result.queries.uncertainty.argmax())
    near = [
        section.images.class_names[int(section.images.labels[i])]
        for i in result.neighbours.indices[row]
    ]
    assert [p.label for p in unsure[0].pictures[1:]] == near


def test_data_uri_is_the_image():
    image = torch.rand(3, 4, 5)
    decoded = Image.open(io.BytesIO(base64.b64decode(data_uri(image).split(",")[1])))
    expected = (image.permute(1, 2, 0) * 255).round()
    np.testing.assert_array_equal(np.asarray(decoded), expected.numpy())


def test_svg_keeps_prefixes_apart():
    one, two = (
        inline_svg(plots.roc_plot({"x": roc_curve([0.1], [0.2])}), prefix, "a <curve>")
        for prefix in ("p", "q")
    )
    assert one != two
    assert not set(re.findall(r'id="([^"]+)"', one)) & set(re.findall(r'id="([^"]+)"', two))
    assert 'aria-label="a &lt;curve&gt;"' in one


def test_rows_show_mean_and_standard_error_over_seeds(outcome):
    results = outcome.results("seen")
    row = next(r for r in table_rows(results) if r.name == "retrieval ECE")
    values = [r.calibration.ece for r in results["Laplace"]]
    cell = row.cells[2]
    assert cell.text == f"{np.mean(values):.3f}"
    assert cell.note == f"± {np.std(values, ddof=1) / math.sqrt(2):.3f}"
    texts = [float(c.text) for c in row.cells]
    assert [c.best for c in row.cells] == [value == min(texts) for value in texts]


def test_rows_of_one_seed_show_the_interval_and_undefined_metrics(outcome):
    results = {name: runs[:1] for name, runs in outcome.results("seen").items()}
    laplace = replace(results["Laplace"][0], r_auroc=math.nan)
    rows = {r.name: r for r in table_rows({**results, "Laplace": (laplace,)})}
    area = next(iter(laplace.ood.values())).auroc
    rows_of_area = [r for r in table_rows(results) if r.name == "AUROC"]
    assert rows_of_area[0].cells[2].note == f"{area.low:.3f} to {area.high:.3f}"
    assert rows["R-AUROC"].cells[2].text == UNDEFINED
    assert not rows["R-AUROC"].cells[2].best
    assert not any(cell.best for cell in rows["… of the oracle"].cells)


def test_the_terminal_shows_the_same_numbers_in_80_columns(report):
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal_table(report.sections[0]))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for row in table_rows(report.sections[0].results):
        assert all(cell.text in text for cell in row.cells)


def test_json_has_every_number_and_no_nan(outcome):
    first = outcome.runs[0]
    broken = replace(first.seen["Laplace"], r_auroc=math.nan)
    changed = replace(first, seen={**first.seen, "Laplace": broken})
    text = json_text(numbers_of(replace(outcome, runs=(changed, outcome.runs[1]))))
    content = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert [run["seed"] for run in content["runs"]] == [3, 4]
    numbers = content["runs"][0]["seen classes"]["Laplace"]
    assert numbers["r_auroc"] is None
    assert numbers["recall@1"] == first.seen["Laplace"].recall.value
    assert set(numbers["out"]) == {"patches of photographs", "new classes"}
    assert set(content["runs"][0]["unseen classes"]) == {"Deterministic", "MC dropout", "Laplace"}


def test_the_overview_has_three_plots(outcome):
    assert len(overview(outcome).axes) == 3


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_atomically(path, "old")
    assert path.read_text() == "old"

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    require_writable(tmp_path / "new.html")
    with pytest.raises(InputError, match="does not exist"):
        require_writable(tmp_path / "missing" / "r.html")
    with pytest.raises(InputError, match="is a folder"):
        require_writable(tmp_path)
