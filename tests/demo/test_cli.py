"""The command line: exit codes, one-line errors, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from laplace_metric.cli import main
from laplace_metric.cli.demo import RECIPES
from laplace_metric.cli.demo import _command as command

TINY = ["--limit", "40", "--epochs", "1", "--seeds", "1"]


def test_the_demo_from_end_to_end(tmp_path, capsys):
    page, figure = tmp_path / "r.html", tmp_path / "overview.png"
    state = torch.get_rng_state()
    assert main(["demo", *TINY, "--seed", "5", "--output", str(page), "--figure", str(figure)]) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert page.read_text().startswith("<!doctype html>")
    assert figure.read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["n_train"] == 40
    assert [run["seed"] for run in content["runs"]] == [5]
    assert {p.name for p in tmp_path.iterdir()} == {"r.html", "r.json", "overview.png"}
    printed = capsys.readouterr().out
    assert "retrieval ECE" in printed
    assert "training" in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--dataset", "nope"], "choose from 'digits', 'fashion-mnist'"),
        (["demo", "--dataset", "mnist", "--data", "/no/such/folder"], "is not a folder"),
        (["demo", "--dataset", "mnist"], "LAPLACE_METRIC_DATA"),
        (["demo", "--output", "/no/such/folder/r.html"], "does not exist"),
        (["demo", "--epochs", "0"], "at least 1"),
        (["demo", "--limit", "many"], "'many' is not a whole number"),
        (["demo", "--figure", "a.gif"], "end it in .png, .svg, .pdf"),
        (["demo", "--json", "report.html"], "Give different names"),
        (["what"], "invalid choice: 'what'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, says, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("LAPLACE_METRIC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    assert code == 2
    assert says in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_empty_data_folder_names_the_missing_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LAPLACE_METRIC_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--dataset", "omniglot"]) == 2
    shown = capsys.readouterr().err
    assert "Omniglot" in shown
    assert len(shown.strip().splitlines()) == 1


def test_ctrl_c_exits_with_130_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_experiment", interrupted)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    assert main(["demo"]) == 130
    assert torch.get_num_threads() == 2
    assert capsys.readouterr().err == "\nlaplace-metric: interrupted\n"  # below a bar
    assert list(tmp_path.iterdir()) == []
    torch.set_num_threads(1)


def test_bugs_keep_their_traceback(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(command, "run_experiment", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_help_loads_nothing_that_only_the_demo_needs_and_nothing_loads_pyplot():
    code = """
import sys
from laplace_metric.cli import main
try:
    main(["demo", "--help"])
except SystemExit as stop:
    assert stop.code == 0
heavy = {"matplotlib", "sklearn", "pytorch_metric_learning", "rich", "jinja2"}
print(sorted(heavy & set(sys.modules)))
import laplace_metric.cli.demo._command
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in RECIPES)
    assert done.stdout.splitlines()[-2:] == ["[]", "False"]


def test_the_module_runs_like_the_command():
    arguments = [sys.executable, "-m", "laplace_metric", "demo", "--epochs", "none"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not a whole number" in done.stderr


@pytest.mark.skipif("LAPLACE_METRIC_DATA" not in os.environ, reason="needs the image sets")
@pytest.mark.parametrize("dataset", ["fashion-mnist", "omniglot"])
def test_real_image_sets(dataset, tmp_path):
    page = tmp_path / "r.html"
    limit = ["--limit", "60", "--epochs", "1"]
    assert main(["demo", "--dataset", dataset, *limit, "--output", str(page)]) == 0
    content = json.loads(page.with_suffix(".json").read_text())
    assert 30 <= content["n_train"] <= 90
