"""The demo: real commands, one page, one sentence that holds what was found."""

from __future__ import annotations

import json
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
    assert "rare errors are shown, too: query label" in said
    page = (tmp_path / "demo.html").read_text()
    assert page.count("data:image/png") > 20
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Items digits: " in words
    assert gettempdir() not in words


def judged(path, *answers):
    """The rows of (true class, label, reason)."""
    rows = [
        {"query": f"{truth}/1.png", "answered": not reason, "reason": reason}
        | {"label": label, "label_probability": 0.5}
        for truth, label, reason in answers
    ]
    path.write_text(json.dumps(rows))
    return command._judged(path)


def test_counts_are_those_of_the_rows(tmp_path):
    answers = (("1", "1", ""), ("1", "2", ""), ("3", "3", "uncertain"))
    path = tmp_path / "rows.json"
    sentence = command._sentence(
        {"digit": judged(path, *answers), "photograph": judged(path, *answers[:2])}
    )
    assert "2 of 3 new digits answered, 1 of them right (50.0%)" in sentence
    assert "Without abstention: 2 of 3 right (66.7%), and all 2 photographs" in sentence
    assert sentence.endswith("with it 2 of them.")
    rows = judged(path, *((f"{i}", f"{i}", "") for i in range(9)))
    table = command._table({"digit": rows, "photograph": []})
    assert list(table.columns[1].cells) == ["0", "3", "6"], "of several classes"
    assert set(table.columns[3].cells) == {"yes, right"}
    table = command._table({"digit": judged(path, *answers), "photograph": []})
    assert list(table.columns[3].cells) == ["yes, right", "yes, wrong", "uncertain"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_ctrl_c_leaves_nothing_and_bugs_keep_their_traceback(error, tmp_path, capsys, monkeypatch):
    def broken(_):
        raise error

    monkeypatch.setattr(command, "_write_images", broken)
    monkeypatch.chdir(tmp_path)
    if error is ZeroDivisionError:
        with pytest.raises(error):
            main(["demo"])
        return
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "\nlaplace-metric: interrupted\n"
    assert list(tmp_path.iterdir()) == []
