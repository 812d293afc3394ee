"""What values say of themselves: a sentence, shapes and settings, at most ten lines, no tensors."""

from __future__ import annotations

import copy
import dataclasses
from html.parser import HTMLParser

import pytest
from torch import nn

from laplace_metric import Monitor, OnlineLaplace
from laplace_metric._utils.display import LINES, Shown

SHOWN = {
    "embedder": (lambda e, i, x, y: e, ["fitted to 100 points", "structure='kron'", "'append'"]),
    "posterior": (lambda e, i, x, y: e.posterior_, ["36 weights", "Kronecker"]),
    "embedding": (lambda e, i, x, y: e(x), ["400 uncertain", "[400, 6] float32", "epistemic"]),
    "index": (lambda e, i, x, y: i, ["100 items of 4 classes", "Flat", "100 cross-fitted queries"]),
    "calibration": (lambda e, i, x, y: i.calibration, ["from labels", "k=10, depth=50", "rank"]),
    "result": (lambda e, i, x, y: i.search(x, k=7), ["7 nearest", "400 queries", "[400, 7]"]),
    "report": (lambda e, i, x, y: i.evaluate(x[300:], y[300:]), ["of 100 queries", "recall@1"]),
    "quality": (lambda e, i, x, y: i.calibration.quality(), ["Brier score", "100"]),
    "sets": (lambda e, i, x, y: i.retrieval_sets(x), ["400 queries", "on average"]),
    "label sets": (lambda e, i, x, y: i.label_sets(x, 0.2), ["400 queries", "[4] strings"]),
    "fit": (lambda e, i, x, y: e.fitted_, ["posterior", "100"]),
    "distance": (lambda e, i, x, y: e.distance(x[:3], x[3:6]), ["[3] float32"]),
    "monitor": (
        lambda e, i, x, y: Monitor({"uncertainty": e(x).uncertainty}, window=50),
        ["0 queries so far, 0 alarms", "uncertainty", "50"],
    ),
    "online": (lambda e, i, x, y: OnlineLaplace(nn.Linear(6, 3)), ["a Linear, not trained", "4"]),
    "classification": (lambda e, i, x, y: i.ask(x), ["400 queries", "query 4"]),
    "verdict": (
        lambda e, i, x, y: verdict(i, x, y),
        ["[400, 20] float64", "unknown", "[400] bool"],
    ),
    "reliability": (
        lambda e, i, x, y: i.evaluate(x[300:], y[300:]).reliability,
        ["calibration errors", "[10] int64"],
    ),
}


def verdict(index, x, y):
    """Of the hits of the index itself, as if another engine had found them."""
    index = copy.copy(index)
    index.calibrate(x[300:], y[300:], portable=True)
    found = index.search(x, k=20)
    return index.calibration.apply(found.distance, found.labels, epistemic=found.epistemic)


@pytest.mark.parametrize("name", SHOWN)
def test_a_value_says_what_it_is(name, embedder, index, points, names):
    make, words = SHOWN[name]
    value = make(embedder, index, points[0], names)
    text, html = repr(value), value._repr_html_()
    assert text.startswith(type(value).__name__ + ": ")
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) < 140
    assert "tensor(" not in text + html
    for word in words:
        assert word in text
    assert cells(html) == [
        line.split("  ", 1)[0] for line in (line[2:] for line in text.splitlines()[1:])
    ]


def cells(html):
    """Names of the rows of the table of a page; the page is closed."""
    found, opened = [], []

    class Rows(HTMLParser):
        def handle_starttag(self, tag, attrs):
            opened.append(tag)

        def handle_endtag(self, tag):
            assert opened.pop() == tag

        def handle_data(self, data):
            if opened and opened[-1] == "th":
                found.append(data)

    Rows().feed(html)
    assert not opened
    return found


def test_more_rows_than_there_is_room_for_are_named():
    fields = [(f"field_{n}", int, 0) for n in range(20)]
    wide = dataclasses.make_dataclass("Wide", fields, bases=(Shown,), repr=False)
    lines = repr(wide()).splitlines()
    assert len(lines) == LINES
    assert lines[-1].startswith("  and      field_8, field_9")
