"""The run of everything: its plan, what is stale, and what pages may show."""

from __future__ import annotations

import argparse
import re
import subprocess

import pytest

from benchmarks import definitions, records, tables, whole_run
from benchmarks.methods import METHODS
from benchmarks.methods.code import code_of
from benchmarks.protocols import PROTOCOLS
from benchmarks.records import RESULTS, read_record
from benchmarks.registry import COMMANDS, load_piece, main, parser
from laplace_metric.errors import UnknownNameError

RUNNER = definitions.COMPARISON
MARKS = re.compile(r"<!-- table:([\w-]+) -->")
MODULES = {
    f"small/{name}" if piece.tasks else name: piece.module
    for piece in whole_run.PIECES
    for name in piece.records
}
"""Record -> the module whose code defines its numbers."""


def shown():
    """The records that the tables of the pages read."""
    found = set()
    for page in tables.PAGES:
        for name in MARKS.findall(page.read_text()):
            with records.noted_reads() as read:
                tables.TABLES[name]()
            found |= read
    return found


def test_pages_show_records_of_the_present_definitions():
    wrong = []
    for name in shown() - tables.ELSEWHERE:
        record = read_record(name)
        told = record["environment"].get("definitions")
        rows = record["rows"] if name.startswith("small/") else ()
        others = {row["method"] for row in rows if row.get("code") != code_of(row["method"])}
        if told != definitions.definitions(MODULES[name]) or others:
            wrong.append((name, others))
    assert not wrong, "run `python -m benchmarks all` for these records"


def test_only_methods_without_a_measurement_of_their_code_make_a_comparison_stale(
    tmp_path, monkeypatch
):
    (piece,) = whole_run.chosen(["compare-pretrained"])
    monkeypatch.setattr(whole_run, "RESULTS", tmp_path)
    code = {"definitions": definitions.definitions(RUNNER), "library": definitions.library(RUNNER)}
    monkeypatch.setattr(records, "CODE_OF_PIECE", code)
    rows = [
        {"task": task, "method": method, "code": code_of(method)}
        for task in piece.tasks
        for method in METHODS
        if PROTOCOLS["pretrained"].wants(task, method)
    ]
    records.write_record("pretrained", {"rows": rows}, tmp_path / "small")
    assert piece.state() == whole_run.CURRENT
    for other in (rows[1:], [*rows[1:], rows[0] | {"code": "other"}]):
        records.write_record("pretrained", {"rows": other}, tmp_path / "small")
        assert piece.state() == whole_run.METHODS_DIFFER


def test_a_piece_of_two_protocols_wants_of_each_its_own_tasks(tmp_path, monkeypatch):
    (piece,) = whole_run.chosen(["compare-people"])
    monkeypatch.setattr(whole_run, "RESULTS", tmp_path)
    code = {"definitions": definitions.definitions(RUNNER), "library": definitions.library(RUNNER)}
    monkeypatch.setattr(records, "CODE_OF_PIECE", code)
    for name, task in zip(piece.records, piece.tasks, strict=True):
        rows = [
            {"task": task, "method": method, "code": code_of(method)}
            for method in METHODS
            if PROTOCOLS[name].wants(task, method)
        ]
        records.write_record(name, {"rows": rows}, tmp_path / "small")
    assert piece.state() == whole_run.CURRENT
    records.write_record(name, {"rows": rows[1:]}, tmp_path / "small")
    assert piece.state() == whole_run.METHODS_DIFFER


@pytest.mark.parametrize("piece", [p for p in whole_run.PIECES if p.tasks], ids=lambda p: p.name)
def test_every_task_of_a_piece_is_asked_by_one_of_its_protocols(piece):
    asked = [PROTOCOLS[name] for name in piece.records]
    assert {*piece.tasks} <= {t for p in asked for t in (*p.tasks["small"], *p.if_there)}


def test_a_protocol_is_collected_once_all_its_pieces_are_done(tmp_path):
    pieces = {piece.name: piece for piece in whole_run.PIECES}

    def done(name):
        whole_run._mark(tmp_path, pieces[name]).touch()
        return whole_run.compared(tmp_path)

    assert whole_run.compared(tmp_path) == []
    assert done("compare-birds") == []
    assert done("compare-fashion") == ["lam"]
    assert done("compare-pretrained") == ["lam", "pretrained"]
    assert done("compare-unseen") == ["lam", "url", "pretrained"]


@pytest.mark.parametrize("name", ["retrieval-power", "costs-peers"])
def test_a_piece_whose_rivals_are_not_installed_is_not_run(name, tmp_path, monkeypatch, capsys):
    (piece,) = whole_run.chosen([name])
    monkeypatch.setattr(whole_run, "find_spec", lambda module: None)
    monkeypatch.setattr(whole_run.subprocess, "run", lambda *args, **kwargs: pytest.fail("ran"))
    options = argparse.Namespace(cache=tmp_path, data=None, processes=1)
    assert whole_run._together([piece], options, tmp_path) == [name]
    printed = capsys.readouterr().out
    assert printed.count("pip install") == len(piece.needs)
    assert all(whole_run.RIVALS[module] in printed for module in piece.needs)


def test_every_piece_of_the_plan_is_a_command_that_writes_its_record():
    for piece in whole_run.PIECES:
        words = piece.words.split()
        if piece.tasks:
            assert parser().parse_args(words).tasks == list(piece.tasks)
            assert (RESULTS / "small" / f"{piece.records[0]}.json").is_file()
            continue
        options = parser(words[0]).parse_args(words[1:])
        places = COMMANDS[words[0]].pieces
        (name,) = getattr(options, "pieces", None) or places
        assert places[name].partition(":")[0] == piece.module
        assert callable(load_piece(places[name]))
    names = [piece.name for piece in whole_run.PIECES]
    assert len(set(names)) == len(names)


def test_the_plan_says_what_is_stale_and_how_long_it_takes(capsys):
    assert main(["all", "--size", "small", "--plan", "--only", "retrieval-power"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["piece", "retrieval-power", "to"]
    with pytest.raises(UnknownNameError, match="only"):
        whole_run.chosen(["nothing"])


def test_the_smallest_size_has_no_plan(capsys):
    assert main(["all", "--size", "smoke", "--plan"]) == 2
    assert "--size small" in capsys.readouterr().out


def test_the_state_of_a_piece_follows_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_run, "RESULTS", tmp_path)
    (piece,) = whole_run.chosen(["retrieval-growing"])
    assert piece.state() == whole_run.MISSING
    module = piece.module
    code = {"definitions": definitions.definitions(module), "library": definitions.library(module)}
    for changed, state in (
        ({}, whole_run.CURRENT),
        ({"definitions": "other"}, whole_run.STALE),
        ({"library": "other"}, whole_run.OTHER_LIBRARY),
    ):
        monkeypatch.setattr(records, "CODE_OF_PIECE", code | changed)
        records.write_record("growing", {"rows": []}, tmp_path)
        assert piece.state() == state


def test_a_piece_that_ran_is_stamped_and_its_seconds_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "CODE_OF_PIECE", {"definitions": "d", "library": "l"})
    records.write_record("some", {"rows": []}, tmp_path)
    assert records.spent(tmp_path, "some", 2.5) == 2.5
    total = records.spent(tmp_path, "some", 1.5)
    records.note_seconds("some", total, tmp_path)
    told = read_record("some", tmp_path)["environment"]
    assert (told["definitions"], told["library"], told["seconds"]) == ("d", "l", 4.0)
    assert {"git", "git_clean"} <= set(told)


def test_code_is_clean_beside_records_that_the_run_wrote(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "__file__", str(tmp_path / "benchmarks" / "records.py"))
    written = ("benchmarks/results/some.json", "benchmarks/costs/README.md", "benchmarks/a.svg")
    for name in ("laplace_metric/a.py", "benchmarks/a.py", *written):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    for name in written:
        (tmp_path / name).write_text("after")
    assert records._state()["git_clean"] is True
    (tmp_path / "laplace_metric/a.py").write_text("after")
    assert records._state()["git_clean"] is False


def test_work_of_other_code_is_kept_apart_and_encodings_are_shared(tmp_path, monkeypatch):
    one = records.work_folder(tmp_path, "benchmarks.retrieval.growing")
    (one / "encoded" / "features.txt").write_text("")
    assert records.work_folder(tmp_path, "benchmarks.retrieval.growing") == one
    monkeypatch.setattr(records, "library", lambda module: "other")
    other = records.work_folder(tmp_path, "benchmarks.retrieval.growing")
    assert other != one
    assert (other / "encoded" / "features.txt").is_file()
