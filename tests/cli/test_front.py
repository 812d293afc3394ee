"""What a user meets first: help, examples, near names, Ctrl-C."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from laplace_metric.cli import main
from laplace_metric.cli._options import COMMANDS, command_text, commands_in, parser_of
from laplace_metric.errors import InputError
from tests.cli import workshop

FIT = [*workshop.FIT, "--quiet"]


def said(arguments, capsys) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_bare_command_is_its_help(capsys):
    code, out, err = said([], capsys)
    assert (code, err) == (0, "")
    assert all(name in out for name in commands_in(""))
    assert re.fullmatch(r"laplace-metric \S+\n", said(["--version"], capsys)[1])
    assert said(["--help"], capsys)[1] == out
    code, out, _ = said(["image-text"], capsys)
    assert code == 0
    assert out.startswith("usage: laplace-metric image-text")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name])
def test_each_help_ends_with_an_example_that_parses(name, capsys):
    code, out, _ = said([*name.split(), "--help"], capsys)
    assert code == 0
    parser = parser_of(name)
    assert out.splitlines()[-1].strip() == f"laplace-metric {name} {parser.example}"
    if COMMANDS[name][1]:
        module, function = COMMANDS[name][1].split(":")
        assert callable(getattr(import_module(f"laplace_metric.{module}"), function))
        parser.parse(shlex.split(parser.example))


def test_arguments_stand_anywhere_and_behind_two_dashes():
    search = parser_of("search")
    assert vars(search.parse(["i", "-k", "3", "q"])) == vars(search.parse(["-k=3", "i", "q"]))
    odd = search.parse(["-k", "3", "--", "-i", "--q"])
    assert (odd.index, odd.queries, odd.k) == (Path("-i"), Path("--q"), 3)


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][1]])
def test_a_command_as_text_gives_the_same_options(name):
    parser = parser_of(name)
    words = shlex.split(parser.example)
    if name == "search":
        words = ["index", "--text", "a 'cat'", "--text", "b", "-k", "3", "--skip-unreadable"]
    options = parser.parse(words)
    program, *given = shlex.split(command_text(options))
    assert program == "laplace-metric"
    assert given[: len(name.split())] == name.split()
    assert parser.parse(given[len(name.split()) :]) == options


def test_interrupted_on_a_line_of_its_own(workplace, monkeypatch, capsys):
    from laplace_metric.cli import _fit, _index

    def stop(*_):
        print("a bar", end="", file=sys.stderr)
        raise KeyboardInterrupt

    monkeypatch.setattr(_fit, "load_model_and_data", stop)
    monkeypatch.setattr(_index, "load_posterior", stop)
    code, out, err = said(FIT[:-1], capsys)
    assert (code, out) == (130, "")
    assert err == "a bar\nlaplace-metric: interrupted. The same command goes on from where it was\n"
    err = said(["index", "photos", "--posterior", "p"], capsys)[2]
    assert err == "a bar\nlaplace-metric: interrupted\n"


def test_an_error_and_a_note_begin_a_line_where_a_bar_stands(monkeypatch, capsys):
    from laplace_metric._utils.progress import tqdm
    from laplace_metric.cli import _fit

    def fail(error):
        bar = tqdm(total=9, desc="Reading", mininterval=0)
        bar.update(2)
        warnings.warn("row 2 is odd", UserWarning, stacklevel=1)
        bar.update(3)
        raise error

    for error, code, told in (
        (InputError("row 5 cannot be read"), 2, "error: row 5 cannot be read"),
        (KeyboardInterrupt(), 130, "interrupted. The same command goes on from where it was"),
    ):
        monkeypatch.setattr(_fit, "fit", lambda _, error=error: fail(error))
        found, _, err = said(["fit", "x"], capsys)
        assert found == code
        *_, bar, last = err.splitlines()
        assert bar.startswith("Reading:  56%")
        assert last == f"laplace-metric: {told}"
        assert "note: row 2 is odd" in err.splitlines()


PATHS = ("DATA", "DIR", "FILE", "INDEX", "PATH", "QUERIES", "RULE", "TABLE")


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][1]])
def test_each_path_knows_the_home_of_a_user(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = parser_of(name).options
    paths = [one for one in options if one.metavar in PATHS]
    for one in paths:
        assert one.type("~/my photos/a.csv") == tmp_path / "my photos/a.csv"
        assert one.type("~") == tmp_path
        assert one.type("./~/a b~.csv") == Path("~/a b~.csv")
        assert one.type("~no such user/x") == Path("~no such user/x")
        with pytest.raises(argparse.ArgumentTypeError, match="empty"):
            one.type("")
    assert paths


def test_a_home_and_blanks_are_read_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home of a user"))
    (tmp_path / "home of a user").mkdir()
    monkeypatch.chdir(tmp_path / "home of a user")
    workshop.write_vectors("my vectors", 200)
    monkeypatch.chdir(tmp_path)
    where = ["--output", "~/my posterior", "--json", "~/the numbers.json", "--quiet"]
    assert said(["fit", "~/my vectors.npz", *where], capsys)[0] == 0
    assert {path.name for path in (tmp_path / "home of a user").iterdir()} == {
        "my vectors.npz", "my posterior", "the numbers.json",
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == [tmp_path / "home of a user"]
    code, _, err = said(["fit", ""], capsys)
    assert code == 2
    assert "argument DATA: the path is empty" in err
    assert len(err.splitlines()) == 1


LOUD = """
import os
import subprocess
import sys
from my_model import embedder as quiet


def embedder():
    model = quiet()
    print("a print", flush=True)
    os.write(1, b"as C does\\n")
    subprocess.run([sys.executable, "-c", "print('of a child')"])
    model.register_forward_hook(lambda *_: print("at every batch"))
    return model
"""


def test_a_model_that_prints_leaves_our_output_alone(workplace):
    Path("loud.py").write_text(LOUD)
    fit = ["fit", "photos", "--model", "loud:embedder", "--json", "-"]
    ran = subprocess.run(
        [sys.executable, "-m", "laplace_metric", *fit], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout)["items"] == 600
    for line in ("a print", "as C does", "of a child", "at every batch"):
        assert re.search(f"^{line}$", ran.stderr, re.MULTILINE), line
