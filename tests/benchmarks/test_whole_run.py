"""The run of everything: its plan, what is stale, and what pages may show."""

from __future__ import annotations

import re

import pytest

from benchmarks import definitions, records, tables, whole_run
from benchmarks.records import RESULTS, read_record
from benchmarks.registry import COMMANDS, load_piece, main, parser
from laplace_metric.errors import UnknownNameError

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


def test_pages_show_records_of_the_present_definitions_or_of_those_that_wait():
    wrong = []
    for name in shown() - tables.ELSEWHERE - tables.WAITING:
        told = read_record(name)["environment"].get("definitions")
        if told != definitions.definitions(MODULES[name]):
            wrong.append(name)
    assert not wrong, "run `python -m benchmarks all` for these records"


def test_what_waits_for_the_run_has_not_been_run():
    assert set(MODULES) >= tables.WAITING
    done = {n for n in tables.WAITING if "definitions" in read_record(n)["environment"]}
    assert not done, "take these names out of tables.WAITING"


def test_tables_of_records_that_wait_say_when_they_were_measured(monkeypatch):
    text = "<!-- table:evidence-confirm -->\n<!-- end -->"
    assert tables.FORMER.partition("{")[0] in tables.filled(text)
    monkeypatch.setattr(tables, "WAITING", frozenset())
    assert tables.FORMER.partition("{")[0] not in tables.filled(text)


def test_a_hash_is_of_code_and_not_of_words():
    before = "def f(x):\n    return x + 1\n"
    words = '"""About."""\n\ndef f(x):\n    """Add."""\n    return x + 1  # one\n'
    shown = before + "\ndef some_table():\n    return 3\n"
    same = {definitions.plain_code(code) for code in (before, words, shown)}
    assert len(same) == 1
    assert definitions.plain_code(before.replace("1", "2")) not in same


def test_a_hash_covers_what_a_piece_imports_and_no_tables():
    covered = definitions.imported("benchmarks.protocols.runner")
    assert {"baselines.nuq", "benchmarks.sizes", "benchmarks.methods.table"} <= covered
    assert not {name for name in covered if name.startswith(definitions.WITHOUT_NUMBERS)}
    assert "benchmarks.tables" not in covered


def test_a_hash_changes_with_the_code_that_is_imported(monkeypatch):
    module = "benchmarks.retrieval.growing"
    before = definitions.definitions(module)
    plain = definitions.plain_code
    monkeypatch.setattr(definitions, "plain_code", lambda source: plain(source + "\nX = 1"))
    assert definitions.definitions(module) != before


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


def test_the_state_of_a_piece_follows_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_run, "RESULTS", tmp_path)
    (piece,) = whole_run.chosen(["retrieval-growing"])
    assert piece.state() == whole_run.MISSING
    code = {"definitions": definitions.definitions(piece.module), "library": definitions.library()}
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


def test_work_of_other_code_is_kept_apart_and_encodings_are_shared(tmp_path, monkeypatch):
    one = records.work_folder(tmp_path, "benchmarks.retrieval.growing")
    (one / "encoded" / "features.txt").write_text("")
    assert records.work_folder(tmp_path, "benchmarks.retrieval.growing") == one
    monkeypatch.setattr(records, "library", lambda: "other")
    other = records.work_folder(tmp_path, "benchmarks.retrieval.growing")
    assert other != one
    assert (other / "encoded" / "features.txt").is_file()
