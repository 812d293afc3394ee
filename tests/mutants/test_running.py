"""Draws that are the same for a seed, and what is said of a small package with one gap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants import ROOT
from tests.mutants.__main__ import main
from tests.mutants.drawing import draw, files_of
from tests.mutants.nearness import Imports
from tests.mutants.recording import Record, hash_of

SUMS = '''"""Sums."""


def total(values):
    result = 0
    for value in values:
        if value < 0:
            raise ValueError("negative")
        result += value
    return result


def capped(value):
    return min(value, total([4, 5]))


def unused(value):
    return value - 1
'''
TESTS = """import pytest
from small import capped, total


@pytest.fixture(scope="module")
def found():
    return total([1, 2, 0])


def test_broken():
    assert total([1]) == 2


def test_total(found):
    assert found == 3


def test_negative():
    with pytest.raises(ValueError):
        total([-1])


def test_capped():
    assert (capped(3), capped(20)) == (3, 9)
"""


@pytest.fixture
def small(tmp_path):
    """A tree with a package whose tests call all but one function."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").write_text("from small.sums import capped, total\n")
    (tmp_path / "small" / "sums.py").write_text(SUMS)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS)
    (tmp_path / "tests" / "test_other.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path


def contents(root):
    files = (path for path in root.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_only_what_no_test_calls_lives_and_the_tree_is_as_it_was(small, capsys):
    before = contents(small)
    assert main(["small", "--draw", "99", "--timeout", "9"], root=small) == 1
    said = capsys.readouterr().out
    lived = {line for line in said.splitlines() if "LIVES" in line}
    assert lived
    assert all("small/sums.py:18:" in line and "no near test" in line for line in lived), said
    assert "-    return value - 1" in said
    assert "+    return value + 1" in said or "+    return value" in said
    assert "tests/test_sums.py::test_total" in said, "whose fixture runs the line"
    assert "test_broken" not in said, "a test that fails anyway notices nothing"
    assert contents(small) == before
    (record,) = (small / ".cache" / "mutants").iterdir()
    kept = record.stat().st_mtime_ns
    assert main(["small/sums.py", "--draw", "99", "--only", "1"], root=small) in (0, 1)
    assert record.stat().st_mtime_ns == kept, "recorded once"


def test_a_seed_draws_the_same_mutants_at_different_places():
    drawn = [draw("curvature", ROOT, 20, seed) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    places = {(mutant.file, mutant.place.edits) for mutant in drawn[0]}
    assert len(places) == 20
    assert draw("curvature", ROOT, 5, 5) == drawn[0][:5], "a longer draw begins alike"


def test_a_list_says_file_line_and_difference_and_runs_nothing(small, capsys):
    assert main(["small", "--list", "--only", "1"], root=small) == 0
    said = capsys.readouterr().out
    assert said.startswith("1. small/sums.py:")
    assert "\n-" in said
    assert "\n+" in said
    assert not (small / ".cache").exists()


def test_rooms_are_named_by_a_path_or_by_their_place_in_a_package():
    assert files_of("guard.py", ROOT) == files_of("guard", ROOT) == ["laplace_metric/guard.py"]
    assert files_of("laplace_metric/curvature", ROOT) == files_of("curvature", ROOT)
    command = [sys.executable, "-m", "tests.mutants", "nowhere"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 2
    assert "ROOM is 'nowhere': no such folder or file" in run.stderr


def test_who_imports_a_name_through_a_door_is_as_near_as_who_imports_the_file(small):
    imports = Imports(small, ("small",))
    assert imports.nearest("small/sums.py") == ["tests/test_sums.py"]
    (small / "tests" / "test_other.py").write_text("import small as s\ns.total([1])\n")
    found = Imports(small, ("small",)).nearest("small/sums.py")
    assert found == ["tests/test_sums.py", "tests/test_other.py"]


def test_a_record_holds_while_the_tests_and_the_file_are_as_they_were(small):
    names = ("small/sums.py", "small/__init__.py", "tests/test_sums.py")
    record = Record({}, (), {}, {name: hash_of(small / name) for name in names})
    assert record.holds("small/sums.py", small)
    assert record.holds("small/new.py", small)
    (small / "small" / "__init__.py").write_text("from small.new import total\n")
    assert record.holds("small/sums.py", small), "another file"
    assert not record.holds("small/new.py", small), "which the other may call now"
    (small / "tests" / "test_sums.py").write_text("")
    assert not record.holds("small/sums.py", small)
