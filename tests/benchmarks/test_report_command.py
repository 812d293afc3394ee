"""The command that collects runs and writes the page."""

from __future__ import annotations

import json

import pytest

from benchmarks.records import Store
from benchmarks.registry import main, parser
from benchmarks.report.collect import collect, write
from benchmarks.report.page import render
from tests.benchmarks.reports import SIX, TASK, read_digits


@pytest.fixture
def record():
    return read_digits()


@pytest.fixture
def cache(record, tmp_path):
    """A cache with the runs of the record, as the runner leaves them."""
    store = Store(tmp_path / "runs-smoke")
    for row in record["rows"]:
        whole = {**row, "size": record["settings"], "environment": record["environment"]}
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


def test_a_collected_record_survives_writing(cache, tmp_path):
    content = collect(Store(cache / "runs-smoke"), "lam", "smoke")
    write(content, tmp_path / "lam.json")
    assert render([json.loads((tmp_path / "lam.json").read_text())]) == render([content])


@pytest.mark.parametrize("words", [["--cache", "no"], ["--from-json", "--json", "no"]])
def test_nothing_to_report_is_one_line(words, tmp_path, capsys):
    assert main(["report", *words, "--out", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().out.startswith("error: no")
    assert not list(tmp_path.iterdir())


def test_runs_of_a_method_that_is_no_more_are_named(cache, record, capsys):
    store = Store(cache / "runs-smoke")
    store.write({**record["rows"][0], "method": "old"}, "lam", TASK, "old", 0)
    options = ["--cache", str(cache), "--json", str(cache / "j"), "--out", str(cache / "p.html")]
    assert main(["report", *options]) == 2
    assert "are no more: old. Delete" in capsys.readouterr().out
    assert not (cache / "j").exists()


def test_protocols_still_come_first(capsys):
    assert parser().parse_args(["lam", "url"]).protocols == ["lam", "url"]
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "`report`" in capsys.readouterr().out
