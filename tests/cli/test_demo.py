"""The demo: commands that can be repeated, a folder that stays, and what was found in it."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laplace_metric.cli import _demo as command
from laplace_metric.cli import main


def test_the_demo_from_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--output", "my demo"]) == 0
    folder = tmp_path / "my demo"
    assert [p.name for p in tmp_path.iterdir()] == ["my demo"]
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    answered, right = map(int, re.search(r"(\d+) of 500 .*?, (\d+) of them right", said).groups())
    assert right >= 0.95 * answered >= 0.95 * 400  # the guarantee, on queries that it has not seen
    assert "all 200 photographs answered; with it 0 of them" in said
    counts = re.search(r"500 digits (\d+) \(.*?\) (\d+) \(.*?\) (\d+) \(.*?\) (\d+) \(", said)
    of = [*map(int, counts.groups())]
    assert sum(of) == 500
    assert of[:2] == [right, answered - right]
    shown = re.findall(r"a (digit|photograph) \(.*?\) .*?  (answered, \w+|\w+) *\n", printed)
    assert len(shown) == 20
    for kind, outcome, n in (
        ("digit", "answered, right", right),
        ("digit", "answered, wrong", answered - right),
        ("photograph", "unfamiliar", 200),
    ):
        assert abs(shown.count((kind, outcome)) - 20 * n / 700) < 1
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png") > 20
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert f"Items {folder / 'digits'}: " in words

    # Each line that was printed runs again, in the shell's words, and finds the same.
    commands = re.findall(r"\$ laplace-metric (.*)\n", printed)
    assert [line.split()[0] for line in commands] == [
        *("fit", "index", "search", "search", "report")
    ]
    files = {name: (folder / name).read_bytes() for name in ("queries.json", "photographs.json")}
    for name in (*files, "report.html", "index"):
        (folder / name).unlink()
    for line in commands:
        assert main(shlex.split(line)) == 0
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert (folder / "report.html").stat().st_size > 10_000

    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    assert main(["demo", "--output", "my demo"]) == 2
    told = "my demo exists, and the demo replaces nothing: remove it, or give another --output."
    assert told in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == kept


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
    rows = judged(path, *((f"{i}", f"{i}", "") for i in range(100)))
    table = command._table({"digit": rows, "photograph": []})
    assert len(list(table.columns[1].cells)) == 20
    assert [*table.columns[1].cells][:3] == ["0", "5", "10"], "of several classes"
    assert set(table.columns[3].cells) == {"answered, right"}
    few = judged(path, *answers)
    table = command._table({"digit": few, "photograph": []})
    assert list(table.columns[3].cells) == ["answered, right", "answered, wrong", "uncertain"]
    counts = command._counts({"digit": few, "photograph": few[:1]})
    assert [next(iter(column.cells)) for column in counts.columns] == [
        *("3 digits", "1 (33.3%)", "1 (33.3%)", "1 (33.3%)", "0 (0.0%)")
    ]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(1, 30))
def test_queries_are_shown_in_proportion(sizes, most):
    shown, total = command.in_proportion(sizes, most), sum(sizes)
    assert sum(shown) == min(most, total)
    for n, size in zip(shown, sizes, strict=True):
        assert abs(n - size * min(1, most / max(total, 1))) < 1
        assert n <= size


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_ctrl_c_leaves_nothing_and_bugs_keep_their_traceback(error, tmp_path, capsys, monkeypatch):
    def broken(folder):
        (folder / "digits").mkdir(parents=True)
        raise error

    monkeypatch.setattr(command, "_write_images", broken)
    monkeypatch.chdir(tmp_path)
    if error is ZeroDivisionError:
        with pytest.raises(error):
            main(["demo"])
        assert list(tmp_path.iterdir()) == []
        return
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "\nlaplace-metric: interrupted\n"
    assert list(tmp_path.iterdir()) == []
