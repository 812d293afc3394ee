"""The demo: real commands, one page, one sentence that holds what was found."""

from __future__ import annotations

import re
from tempfile import gettempdir

import pytest

from laplace_metric.cli import _demo as command
from laplace_metric.cli import main


def test_the_demo_from_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--output", "demo.html"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["demo.html"]
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("$ laplace-metric") == 5
    answered, right = map(int, re.search(r"(\d+) of 500 .*?, (\d+) of them right", said).groups())
    assert right >= 0.95 * answered >= 0.95 * 400  # the guarantee, on queries that it has not seen
    assert "all 200 photographs answered; with it 0 of them" in said
    page = (tmp_path / "demo.html").read_text()
    assert page.count("data:image/png") > 20
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Items digits: " in words
    assert gettempdir() not in words


def test_counts_are_those_of_the_rows():
    rows = [
        {"query": f"{truth}/1.png", "label": label, "decision": decision, "match_probability": 0.5}
        for truth, label, decision in (
            ("1", "1", "answer"),
            ("1", "2", "answer"),
            ("3", "3", "abstain"),
        )
    ]
    found = {"digit": command._rows(rows), "photograph": command._rows(rows[:2])}
    sentence = command._sentence(found)
    assert "2 of 3 new digits answered, 1 of them right (50.0%)" in sentence
    assert "Without abstention: 2 of 3 right (66.7%), and all 2 photographs" in sentence
    assert sentence.endswith("with it 2 of them.")


def test_ctrl_c_exits_with_130_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_write_images", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "\nlaplace-metric: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_bugs_keep_their_traceback(tmp_path, monkeypatch):
    def broken(_):
        raise ZeroDivisionError

    monkeypatch.setattr(command, "_write_images", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_the_rows_shown_are_of_several_classes():
    rows = [
        {"query": f"{i}/{i}.png", "label": f"{i}", "decision": "answer", "match_probability": 0.9}
        for i in range(9)
    ]
    table = command._table({"digit": command._rows(rows), "photograph": []})
    assert list(table.columns[1].cells) == ["0", "3", "6"]
