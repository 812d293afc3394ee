"""The table of answers in terminals of any width."""

from __future__ import annotations

import io
import json
from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from laplace_metric.cli._answers_table import answers_table, tell_answers
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._shown_table import ELLIPSIS, fitted_to_width

REASONS = ["", "uncertain", "unfamiliar"]


def goldfinches(**more):
    """Columns of three queries with long names, two neighbours each, as a search has them."""
    names = [f"American_Goldfinch/a photograph of one {i}.jpg" for i in range(3) for _ in range(2)]
    ids = [f"Evening_Grosbeak/some photograph {i}.jpg" for i in range(6)]
    columns = {"query": names, "rank": [1, 2] * 3, "id": ids, "item_label": ["Grosbeak"] * 6}
    columns |= {"distance": [0.5] * 6, "distance_sd": [0.1] * 6}
    columns |= {"match_probability": [0.987] * 6, "label": ["Goldfinch"] * 6}
    return {**columns, "label_probability": [0.99] * 6, **more}


def printed(columns, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(answers_table(columns, 2))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_a_name_of_a_file_is_in_one_line_with_its_end(width):
    columns = goldfinches(reason=[reason for reason in REASONS for _ in range(2)])
    header, _, *lines = printed(columns, width)
    assert max(map(len, lines)) <= width
    each = 2 if "rank" in header else 1  # hits have no line of their own where nothing shows them
    assert len(lines) == 3 * each
    for number, line in enumerate(lines[::each]):
        name = columns["query"][2 * number]
        room = header.index("rank" if each == 2 else "lab" if width > 20 else "la") - 2
        assert line[:room].rstrip() == fitted_to_width(name, room, middle=True)
        assert line[:room].rstrip().endswith("pg" if width < 40 else f"{number}.jpg")
        if width >= 40:
            assert ("answered", *REASONS[1:])[number] in line
    if " id " in header:
        assert all(own[-6:] in line for line, own in zip(lines, columns["id"], strict=True))
    if width == 200:
        assert all(own in line for line, own in zip(lines, columns["id"], strict=True))


def test_a_narrow_terminal_leaves_out_columns_in_order():
    columns = goldfinches(reason=["unfamiliar"] * 6)
    titles = [printed(columns, width)[0].split() for width in (40, 80, 200)]
    assert titles[0] == ["query", "label"]
    assert titles[1] == ["query", "rank", "id", "distance", "match", "label", "prob."]
    assert set(titles[2]) == {*titles[1], "item", "±"}


def test_what_is_shortened_is_known():
    table = answers_table(goldfinches(), 2)
    assert table.is_whole(200)
    assert not table.is_whole(120)
    few = goldfinches(query=["a.png"] * 6, id=["b.png"] * 6)
    assert answers_table(few, 2).is_whole(80)
    assert not answers_table(few, 2).is_whole(40)


def test_a_file_has_what_a_narrow_terminal_shortens(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    output, columns = tmp_path / "all.json", goldfinches()
    tell_answers(columns, 3, 2, Namespace(output=None, picture=None), Reporter())
    shown = capsys.readouterr()
    assert "shortened; --output FILE has all" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 40
    tell_answers(columns, 3, 2, Namespace(output=output, picture=None), Reporter())
    assert capsys.readouterr().err == ""
    assert [row["id"] for row in json.loads(output.read_text())] == columns["id"]


def test_wide_characters_and_markup_are_counted_as_they_are_shown():
    columns = goldfinches(query=["鳥" * 30 + ".jpg"] * 2 + ["[bold]x[/bold] " * 3] * 4)
    for width in (40, 80):
        _, _, *lines = printed(columns, width)
        assert max(map(cell_len, lines)) <= width
        assert lines[0].startswith("鳥")
        assert ".jpg" in lines[0]
        assert any(line.startswith("[bo") for line in lines)


@given(
    st.text(st.characters(exclude_categories=["C", "M", "Z"])), st.integers(3, 40), st.booleans()
)
def test_a_shortened_text_fits_and_keeps_its_ends(text, width, middle):
    short = fitted_to_width(text, width, middle=middle)
    assert cell_len(short) <= width
    if cell_len(text) <= width:
        assert short == text
        return
    head, _, end = short.rpartition(ELLIPSIS)
    assert text.startswith(head.rstrip())
    assert text.endswith(end.strip())
    assert middle or not end
