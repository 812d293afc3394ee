"""Records that are confirmed for the present library: by equal numbers, and by nothing else."""

from __future__ import annotations

import json

import pytest

from benchmarks import confirmation, definitions, imports, records, whole_run
from benchmarks.confirm import again, command, own_library
from benchmarks.confirm.differences import TOLERANCE, differences
from benchmarks.confirm.portions import PORTIONS, Portion
from benchmarks.methods import METHODS
from benchmarks.records import RESULTS_VARIABLE, read_record, write_record
from benchmarks.registry import main
from benchmarks.retrieval import power
from laplace_metric.calibration.guarantees import _test_sequences
from laplace_metric.errors import InputError, UnknownNameError

MODULE = "benchmarks.retrieval.power"
BY_SEED = Portion(("seed",), {"seed": None})


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder of records; pieces run in this process, by the library as it is now."""
    folder = tmp_path / "results"
    folder.mkdir()
    for module in (whole_run, command, again):
        monkeypatch.setattr(module, "RESULTS", folder)
    before = dict(records.CODE_OF_PIECE)

    def in_this_process(one, options, folder, log, root):
        code = dict(records.CODE_OF_PIECE)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(RESULTS_VARIABLE, str(folder / "results"))
            patched.setattr(power, "SIZES", power.SIZES)  # what is narrowed is put back
            again.run_again(one.name, folder / "work", options.data)
        records.CODE_OF_PIECE.clear()
        records.CODE_OF_PIECE.update(code)
        return 0

    monkeypatch.setattr(command, "run_portion", in_this_process)
    monkeypatch.setattr(command, "extracted", lambda *_: None)  # no commit made these records
    yield folder
    records.CODE_OF_PIECE.clear()
    records.CODE_OF_PIECE.update(before)


def recorded(folder, name="power", content=None, module=MODULE, **facts):
    """Write a record of an earlier library."""
    code = {"definitions": definitions.definitions(module), "library": "earlier"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "CODE_OF_PIECE", {**code, "threads": 1, "seconds": 3.0, **facts})
        path = write_record(name, content, folder)
    return path


@pytest.fixture
def small(results, monkeypatch):
    """The record of a small piece: five calibrations of each world and size."""
    monkeypatch.setattr(power, "RUNS", 5)
    monkeypatch.setattr(power, "FINE", 4_000)
    monkeypatch.setattr(power, "PLACES", 20)
    monkeypatch.setattr(power, "find_spec", lambda _: None)
    rows = [
        power.power_of(world, n * (2 if world.lists else 1), 5)
        for world in power.power_worlds()
        for n in power.SIZES
    ]
    content = {"confidence": 1 - power.DELTA, "mapie": None, "rows": rows}
    return recorded(results, content=json.loads(json.dumps(content)))


def confirm(tmp_path, *words):
    return main(["confirm", *words, "--cache", str(tmp_path / "cache"), "--quiet"])


def state(name="power"):
    return whole_run.piece_of(name).state_of(name)


def test_equal_numbers_are_confirmed_and_nothing_else_of_the_file_changes(small, tmp_path, capsys):
    before = small.read_text()
    assert state() == whole_run.OTHER_LIBRARY
    assert confirm(tmp_path, "power") == 0
    assert "power: confirmed" in capsys.readouterr().out
    lines = small.read_text().splitlines(keepends=True)
    assert "".join(lines[:1] + lines[2:]) == before
    said = json.loads(lines[1].strip().rstrip(",").partition(": ")[2])
    assert said["library"] == definitions.library(MODULE)
    assert said["portion"] == "n 100, 5 of 18 rows"
    assert said["largest difference"] == 0
    assert said["numbers"] > 40
    assert state() == whole_run.CONFIRMED
    assert confirm(tmp_path, "power") == 0  # nothing is left to do
    assert "nothing to do" in capsys.readouterr().out
    assert "confirmed" in whole_run.plan(whole_run.chosen(["retrieval-power"]), 1)


def test_a_number_of_the_library_that_moved_is_named_and_confirms_nothing(
    small, tmp_path, monkeypatch, capsys
):
    before, lowest = small.read_bytes(), _test_sequences.Tests.lowest
    looser = lambda self, target, d: lowest(self, target, 6 * d)  # noqa: E731
    monkeypatch.setattr(_test_sequences.Tests, "lowest", looser)
    with pytest.raises(SystemExit) as ended:
        confirm(tmp_path, "retrieval-power")
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "numbers moved" in said
    assert "ours: answered" in said
    assert small.read_bytes() == before
    assert state() == whole_run.OTHER_LIBRARY


@pytest.fixture
def of_other_kernels(small, monkeypatch):
    """The small record as another processor makes it, whose library is the present one."""
    record = read_record("power", small.parent)
    for row in record["rows"]:
        row["ours"]["answered"] *= 1.001
    small.write_text(json.dumps(record, indent=1) + "\n")
    monkeypatch.setattr(command, "extracted", lambda record, folder: folder)
    return small


def test_numbers_that_kernels_moved_are_confirmed_by_the_record_s_own_library(
    of_other_kernels, tmp_path, monkeypatch, capsys
):
    assert confirm(tmp_path, "power") == 0
    assert "kernels move it by 1.0e-03" in capsys.readouterr().out
    said = read_record("power", of_other_kernels.parent)["confirmed"]
    assert said["kernels"] == 1e-3
    assert said["largest difference"] == 0
    assert state() == whole_run.CONFIRMED


def test_its_own_library_gives_other_numbers(of_other_kernels, tmp_path, monkeypatch, capsys):
    before, run, lowest = (
        of_other_kernels.read_bytes(),
        command.run_portion,
        _test_sequences.Tests.lowest,
    )
    looser = lambda self, target, d: lowest(self, target, 6 * d)  # noqa: E731

    def by_library(one, options, folder, log, root):
        with pytest.MonkeyPatch.context() as patched:
            if root == command.ROOT:
                patched.setattr(_test_sequences.Tests, "lowest", looser)
            return run(one, options, folder, log, root)

    monkeypatch.setattr(command, "run_portion", by_library)
    with pytest.raises(SystemExit):
        confirm(tmp_path, "power")
    assert "gives others" in capsys.readouterr().out
    assert of_other_kernels.read_bytes() == before


def test_records_of_fixed_kernels_and_of_unknown_libraries_must_be_equal(
    of_other_kernels, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "extracted", lambda *_: None)
    with pytest.raises(SystemExit):
        confirm(tmp_path, "power")
    monkeypatch.setattr(command, "extracted", lambda *_: pytest.fail("ran"))
    record = read_record("power", of_other_kernels.parent)
    record["environment"]["fixed"] = True
    of_other_kernels.write_text(json.dumps(record, indent=1) + "\n")
    with pytest.raises(SystemExit):
        confirm(tmp_path, "power")


def test_the_library_of_a_commit_stands_beside_the_present_benchmarks(tmp_path):
    if not records.GIT["git"]:
        pytest.skip("no git here")
    facts = {"git": records.GIT["git"], "git_clean": True}
    root = own_library.extracted({"environment": facts}, tmp_path)
    assert (root / "laplace_metric" / "__init__.py").is_file()
    assert not (root / "laplace_metric").is_symlink()
    assert (root / "benchmarks").resolve() == (imports.ROOT / "benchmarks").resolve()
    for unknown in ({"git": "0" * 8}, {"git": None}, {"git_clean": False}):
        assert own_library.extracted({"environment": {**facts, **unknown}}, tmp_path) is None


@pytest.mark.parametrize("field", ["rows", "environment", "confidence", "hash"])
def test_a_record_that_is_edited_afterwards_is_confirmed_no_more(small, tmp_path, field):
    confirm(tmp_path, "power")
    record = read_record("power", small.parent)
    assert confirmation.is_confirmed(record, MODULE)
    if field == "rows":
        record["rows"][-1]["ours"]["answered"] += 1e-9
    elif field == "environment":
        record["environment"]["definitions"] = "forged"
    elif field == "hash":
        record["confirmed"]["hash"] = "0" * 16
    else:
        record["confidence"] = 0.9
    small.write_text(json.dumps(record))
    assert not confirmation.is_confirmed(read_record("power", small.parent), MODULE)
    assert state() in (whole_run.OTHER_LIBRARY, whole_run.STALE)


def test_the_next_change_of_the_library_ends_it_and_the_line_is_replaced(
    small, tmp_path, monkeypatch
):
    confirm(tmp_path, "power")
    n = len(small.read_text().splitlines())
    monkeypatch.setattr(confirmation, "library", lambda module: "next")
    assert state() == whole_run.OTHER_LIBRARY
    confirm(tmp_path, "power")
    assert len(small.read_text().splitlines()) == n
    assert read_record("power", small.parent)["confirmed"]["library"] == "next"


def test_interrupted_while_it_runs_the_record_is_untouched(small, tmp_path, monkeypatch):
    before = small.read_bytes()

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_portion", stopped)
    assert confirm(tmp_path, "power") == 130
    assert small.read_bytes() == before


def test_interrupted_while_it_is_written_the_record_is_untouched(small, tmp_path, monkeypatch):
    before, replace = small.read_bytes(), records.os.replace

    def stopped(source, target):
        if target == small:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(records.os, "replace", stopped)
    assert confirm(tmp_path, "power") == 130
    assert small.read_bytes() == before
    assert [path.name for path in small.parent.iterdir()] == [small.name]


def test_a_run_that_fails_confirms_nothing(small, tmp_path, monkeypatch, capsys):
    before = small.read_bytes()
    monkeypatch.setattr(command, "run_portion", lambda *_: 3)
    with pytest.raises(SystemExit):
        confirm(tmp_path, "power")
    assert "power: failed" in capsys.readouterr().out
    assert small.read_bytes() == before


def test_a_file_that_changes_while_it_is_compared_is_not_written(small):
    read = read_record("power", small.parent)
    small.write_text(small.read_text().replace('"mapie": null', '"mapie": "1"'))
    with pytest.raises(InputError, match="was changed"):
        confirmation.confirm_record(small, MODULE, read, {})


def test_what_cannot_be_confirmed_says_why(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "run_portion", lambda *_: pytest.fail("ran"))
    for facts, why in (
        ({"threads": 2}, "2 threads"),
        ({"definitions": "other"}, "definitions changed"),
        ({"library": definitions.library(MODULE)}, "nothing to do"),
    ):
        recorded(small.parent, content={"rows": []}, **facts)
        assert confirm(tmp_path, "power") == 0
        assert why in capsys.readouterr().out
    recorded(small.parent, "points", {"rows": []}, "benchmarks.costs.points")
    assert confirm(tmp_path, "points") == 0
    assert "no run repeats" in capsys.readouterr().out
    with pytest.raises(UnknownNameError, match="names"):
        command.asked(["nothing"])


def test_a_dry_run_says_what_and_how_long(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "run_portion", lambda *_: pytest.fail("ran"))
    assert confirm(tmp_path, "power", "--dry-run") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("power")]
    assert line.split()[1] == "1"  # 5 of 18 rows of 3 seconds
    assert line.endswith("n 100, 5 of 18 rows")


def test_a_record_is_run_by_the_kernels_that_made_it():
    for facts, fixed in (
        ({"fixed": True}, True),
        ({"fixed": False, "seconds": 3.0}, False),
        ({"seconds": 3.0}, True),
        ({}, False),
    ):
        assert command.has_fixed_kernels({"environment": facts}) is fixed


def rows(**values):
    return {"rows": [{"seed": 0, **values}, {"seed": 1, "x": 9.0}]}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (0.5, 0.5 * (1 + TOLERANCE / 2), ""),
        (0.5, 0.5 * (1 + 2 * TOLERANCE), "x: 0.5 ->"),
        (1e-9, 0.0, ""),
        (1e-3, 1.01e-3, "x: 0.001 ->"),
        (3, 4, "x: 3 -> 4"),
        (float("nan"), float("nan"), ""),
        (float("nan"), 0.5, "x: nan ->"),
        ("auto", "mean", "x: 'auto' -> 'mean'"),
        (True, False, "x: True -> False"),
        (None, 0.5, "x: None -> 0.5"),
        ([1.0, 2.0], [1.0], "x: [1.0, 2.0] ->"),
        ({"a": 1.0}, {"b": 1.0}, "x: a is only in the record"),
    ],
)
def test_equal_is_within_the_tolerance(old, new, said):
    found = differences(BY_SEED, rows(x=old), rows(x=new)).moved
    assert (said in "\n".join(found)) if said else not found


def test_times_are_not_compared_and_a_row_that_is_missing_is():
    old = rows(x=1.0, cpu_seconds=3.0, cost={"wall_seconds": 1.0})
    assert not differences(BY_SEED, old, rows(x=1.0, cpu_seconds=8.0, cost=None)).moved
    (gone,) = differences(BY_SEED, old, {"rows": [old["rows"][1]]}).moved
    assert gone == "seed 0 is only in the record"


def test_every_record_has_a_portion_whose_rows_have_names_of_their_own():
    for piece in whole_run.PIECES:
        for name in piece.records:
            assert (name in PORTIONS) is not piece.timed, name
            if piece.timed:
                continue
            one = command.Asked(name, piece, "")
            record, portion = one.read(), one.portion
            found = portion.rows(record, record)
            assert bool(found) or "rows" not in record, name
            assert len(portion.named(found)) == len(found), name
            assert one.seconds() > 0


def test_the_constants_that_are_narrowed_and_the_options_are_there():
    for name, portion in PORTIONS.items():
        module = again.import_module(whole_run.piece_of(name).module)
        for constant, change in portion.narrowed.items():
            left = change(getattr(module, constant))
            assert type(left) is type(getattr(module, constant)), (name, constant)


def test_the_comparison_takes_recorded_settings():
    runner = object.__new__(again._Settled)
    runner.recorded = {"k-nn distance": {"k": 7}}
    assert runner.choice(METHODS["k-nn distance"], None, 0) == {"k": 7}
    assert runner.choice(METHODS["nuq"], None, 0) == {}


def test_records_go_to_the_folder_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path))
    assert write_record("some", {"rows": []}) == tmp_path / "some.json"
    monkeypatch.delenv(RESULTS_VARIABLE)
    assert records.written_to() == records.RESULTS
