"""Results that are replaced, folders that others wrote: nothing is lost, no code is run."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import pytest

from laplace_metric.cli import main
from laplace_metric.cli._table_files import write_table
from laplace_metric.errors import WriteError
from tests.cli.workshop import write_vectors
from tests.saved_files import edit


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Items, other items, a posterior and an index of the items."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_vectors("items", 400)
        write_vectors("others", 300, 1)
        assert main(["fit", "items.npz", "--quiet"]) == 0
        assert main(["index", "items.npz", "--posterior", "posterior", "--quiet"]) == 0
    return folder


@pytest.fixture
def arrays(made, tmp_path, monkeypatch):
    """The current folder, a copy of ``made``."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def interrupted_removal(monkeypatch):
    """Folders lose their checkpoint.safetensors, then the process is interrupted."""

    def rmtree(folder, **_):
        if folder.is_dir():
            for path in folder.glob("checkpoint.safetensors"):
                path.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        yield patch


def test_interrupted_while_it_removes_its_checkpoint(arrays, interrupted_removal):
    assert main(["fit", "others.npz", "--overwrite", "--quiet"]) == 130
    interrupted_removal.undo()
    assert main(["fit", "items.npz", "--overwrite", "--quiet"]) == 0
    assert not list(Path().glob(".posterior.*"))


def test_a_result_that_cannot_be_written_exits_with_1(arrays, monkeypatch, capsys):
    def full(path, _):
        raise WriteError(f"{path} cannot be written: the disk is full.")

    monkeypatch.setattr("laplace_metric.cli._embed.write_atomically", full)
    assert main(["embed", "items.npz", "--posterior", "posterior", "--output", "e.npz"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "laplace-metric: error: e.npz cannot be written: the disk is full."


def test_a_recipe_runs_nothing_that_was_not_allowed(arrays, capsys, monkeypatch):
    Path("evil.py").write_text("open('ran', 'w')\n")
    path = Path("posterior")
    for model, says in (
        ("os:abort", "import 'os' and call 'abort'"),
        ("evil:run", "import 'evil' and call 'run'"),
        ("antigravity", "antigravity"),
    ):
        edit(path, "recipe", model=model)
        commands = [
            ["embed", "items.npz", "--posterior", "posterior", "--output", "o.npz"],
            ["index", "items.npz", "--posterior", "posterior", "--output", "i2"],
        ]
        for command in commands:
            assert main([*command, "--quiet"]) == 2
            shown = capsys.readouterr().err
            assert says in shown
            assert "--trust-recipe" in shown
    assert not Path("ran").exists()
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    edit(path, "recipe", model="evil:run")
    assert main([*commands[0], "--quiet", "--trust-recipe"]) == 2
    assert Path("ran").exists()


def test_a_recipe_inside_an_index_is_asked_for_too(arrays, capsys):
    edit(Path("index"), "recipe", model="os:abort")
    for command in ("search", "evaluate", "report"):
        assert main([command, "index", "others.npz", "--quiet"]) == 2
        assert "call 'abort'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("gallery", {"seed": "x"}),
        ("gallery", {"seed": 10**30}),
        ("gallery", {"seed": True}),
        ("gallery", {"holdout": 5}),
        ("gallery", {"holdout": [0.5]}),
        ("gallery", {"data": 3}),
        ("gallery", {"read_options": {"transform": "x"}}),
        ("gallery", {"read_options": [1]}),
        ("gallery", {"embedder": "of another index"}),
        ("recipe", {"read_options": [1]}),
        ("recipe", {"read_options": {"size": -1}}),
        ("recipe", {"kind": []}),
        ("recipe", {"holdout": 2.0, "seed": -1}),
        ("recipe", {"fingerprint": 1}),
        ("recipe", {"model": 5}),
        ("posterior", {"head": {"name": "append", "dtype": 3}}),
        ("posterior", {"n_points": "x", "settings": 3}),
        ("index", {"changes": 1e999}),
        ("index", {"engine": "[" * 100}),
    ],
)
def test_hostile_fields_are_named(part, changes, arrays, capsys):
    edit(Path("index"), part, **changes)
    assert main(["search", "index", "others.npz", "--quiet"]) == 2
    assert "error: index" in capsys.readouterr().err


def test_cells_of_a_csv_are_no_formulas(arrays):
    names = ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1"]
    write_vectors("named", 40, names=names)
    assert main(["index", "named.npz", "--posterior", "posterior", "--output", "i2"]) == 0
    assert main(["search", "i2", "named.npz", "-k", "1", "--output", "r.csv", "--quiet"]) == 0
    with open("r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["item_label"] for row in rows} == {f"'{name}" for name in names}
    cells = ["-1", "-1.5e-3", "- x", "a=b", "\r=1", " =1", "\uff1d1", "", "-"]
    write_table(Path("t.csv"), {"x": cells, "n": [-1.5] * len(cells)})
    with open("t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = ["-1", "-1.5e-3", "'- x", "a=b", "'\r=1", "' =1", "'\uff1d1", "", "'-"]
    assert [row["x"] for row in rows] == shown
    assert {row["n"] for row in rows} == {"-1.5"}
