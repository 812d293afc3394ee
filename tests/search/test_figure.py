"""What stands beside each neighbour in the figure of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.offsetbox import AnchoredText

from laplace_metric.calibration import Answers
from laplace_metric.errors import InputError
from laplace_metric.plots._decisions import FADED
from laplace_metric.plots._neighbours import NAME, NOTES, SURE, UNSURE, _short

IMAGES = torch.rand(600, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def index(embedder, points):
    x, y = points
    return embedder.index(x[:300], y[:300], progress=False)


def panels(figure, columns):
    axes = figure.axes
    return [axes[i : i + columns] for i in range(0, len(axes), columns)]


def test_titles_say_what_the_result_says(index, points):
    x, y = points
    index.calibrate(x[300:], y[300:])
    result = index.search(torch.cat([x[:2], 50 * x[2:3] + 90]), k=3)
    grid = panels(result.figure(IMAGES[:3], IMAGES), 4)
    assert [len(row) for row in grid] == [4, 4, 4]
    for q, row in enumerate(grid):
        unknown = bool(result.unknown[q])
        assert ("unfamiliar" in row[0].get_title()) == unknown
        for rank, panel in enumerate(row[1:]):
            p = float(result.match_probability[q, rank])
            lines = panel.get_title().split("\n")
            assert lines[0] == str(result.labels[q, rank])
            assert lines[1].startswith(f"d {float(result.distance[q, rank]):.2f} ± ")
            told = "> 99%" if p >= 0.995 else f"{p:.0%}"
            assert lines[2] == f"match {told}"
            assert panel.title.get_color() == (SURE if p >= 0.5 else UNSURE)
            pixels = panel.images[0].get_array()
            item = IMAGES[int(result.positions[q, rank])][0]
            torch.testing.assert_close(torch.as_tensor(pixels), item)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_the_legend_is_within_the_figure(index, points, k):
    x, y = points
    index.calibrate(x[300:], y[300:])
    figure = index.search(x[:1], k).figure(IMAGES[:1], IMAGES)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    lowest = min(axes.get_window_extent().y0 for axes in figure.axes)
    assert 0 <= legend.y0 < legend.y1 <= lowest


def test_names_are_wrapped_between_words():
    assert _short("hand-fingers-open") == "hand-fingers-open"
    assert _short("001.Black_footed_Albatross") == "001.Black_footed_\nAlbatross"
    assert _short("hand with fingers splayed: dark") == "hand with fingers\nsplayed: dark"
    lines = _short("a name of so many words that it fills more than two lines").split("\n")
    assert len(lines) == 2
    assert lines[1].endswith("…")
    assert max(map(len, lines)) <= NAME


def decided(figure, columns):
    """Sign, line of the frame and lines of the title of each query, and opacities of its hits."""
    found = []
    for row in panels(figure, columns):
        (sign,) = (a for a in row[0].artists if isinstance(a, AnchoredText))
        frame = row[0].spines["left"].get_linestyle()
        seen = {panel.images[0].get_alpha() for panel in row[1:]}
        found.append((sign.txt.get_text(), frame, row[0].get_title().split("\n"), seen))
    return found


def test_decisions_are_seen_without_words(index, points):
    x, y = points
    index.calibrate(x[300:], y[300:])
    result = index.search(x[:4], k=3)
    answers = Answers.of(
        np.array(["a", "b", "c", "d"]),
        np.array([0.93, 0.31, 0.97, 0.8]),
        np.array([True, False, False, True]),
        np.array([False, False, True, False]),
    )
    figure = result.figure(IMAGES[:4], IMAGES, answers=answers)
    shown = decided(figure, 4)
    assert [(sign, frame) for sign, frame, *_ in shown] == [
        ("✓", "solid"), ("?", "dashed"), ("⊘", "dotted"), ("✓", "solid"),
    ]  # fmt: skip
    assert [lines[:2] for _, _, lines, _ in shown] == [
        ["→ a", "probability 93%"],
        ["no answer", "uncertain 31%"],
        ["no answer", "unfamiliar 97%"],
        ["→ d", "probability 80%"],
    ]
    assert [seen for *_, seen in shown] == [{None}, {FADED}, {FADED}, {None}]
    words = [text.get_text() for text in figure.legends[0].texts]
    assert words[:3] == ["answered", "no answer: uncertain", "no answer: unfamiliar"]
    before = result.figure(IMAGES[:4], IMAGES)
    assert not any(axes.artists for axes in before.axes)
    with pytest.raises(InputError, match=r"answers has 3 .* 4 queries"):
        result.figure(IMAGES[:4], IMAGES, answers=answers[:3])


def test_a_rule_of_an_index_is_drawn_as_it_answers(index, points):
    x, y = points
    index.calibrate(x[300:], y[300:])
    result = index.search(x[300:], k=2)
    answers = index.guarantee(precision=0.5)(result)
    rows = np.concatenate([(answers.answered == given).nonzero()[0][:2] for given in (True, False)])
    result, answers = index.search(x[300:][rows], k=2), answers[rows]
    shown = decided(result.figure(IMAGES[: len(rows)], IMAGES, answers=answers), 3)
    assert [sign for sign, *_ in shown][:2] == ["✓", "✓"]
    assert not {sign for sign, *_ in shown[2:]} - {"?", "⊘"}
    assert len(shown) == 4


def test_frames_say_what_is_right_where_the_truth_is_known(index, points):
    x, y = points
    index.calibrate(x[300:], y[300:])
    result = index.search(x[:3], k=3)
    truth = [int(result.labels[0, 0]), -5, int(result.labels[2, 0])]
    figure = result.figure(IMAGES[:3], IMAGES, truth=truth)
    for q, row in enumerate(panels(figure, 4)):
        assert row[0].get_title().startswith(f"is {truth[q]}\n")
        for rank, panel in enumerate(row[1:]):
            right = result.labels[q, rank] == truth[q]
            assert panel.title.get_color() == (SURE if right else UNSURE)
    words = [text.get_text() for text in figure.legends[0].texts]
    assert words == ["frame: of the query's class", "of another", *NOTES]
    likely = result.figure(IMAGES[:3], IMAGES).legends[0].texts[0].get_text()
    assert likely == "frame: a match is more likely than not"
    with pytest.raises(InputError, match=r"truth.*\(2,\).*3 queries"):
        result.figure(IMAGES[:3], IMAGES, truth=truth[:2])
    with pytest.raises(InputError, match="have no labels"):
        replace(result, labels=None).figure(IMAGES[:3], IMAGES, truth=truth)
