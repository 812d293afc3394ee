"""What a user meets first: help, examples, near names, config files, completion, Ctrl-C."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from laplace_metric.cli import main
from laplace_metric.cli._options import COMMANDS, commands_in, parser_of, script
from tests.cli import workshop

FIT = [*workshop.FIT, "--quiet"]
TRUST = ["--trust-recipe", "--quiet"]


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


def test_arguments_stand_anywhere_and_behind_two_dashes(tmp_path):
    search = parser_of("search")
    assert vars(search.parse(["i", "-k", "3", "q"])) == vars(search.parse(["-k=3", "i", "q"]))
    odd = search.parse(["-k", "3", "--", "-i", "--q"])
    assert (odd.index, odd.queries, odd.k) == (Path("-i"), Path("--q"), 3)
    config = tmp_path / "c.toml"
    config.write_text("text = ['a', 'b']\nk = 4\nindex = 'i'")
    found = parser_of("search").parse(["--config", str(config)])
    assert (found.index, found.text, found.k) == (Path("i"), ["a", "b"], 4)
    typed = parser_of("search").parse(["other", "--config", str(config), "--text", "c", "-k", "5"])
    assert (typed.index, typed.text, typed.k) == (Path("other"), ["c"], 5)


def test_a_run_is_repeated_from_its_folder(workplace, capsys):
    told = ["--holdout", "0.4", "--structure", "diag", "--seed", "3", "--prior-precision", "2.5"]
    assert main([*FIT, *told]) == 0
    assert main(["fit", "--config", "posterior/run.toml", "--output", "again", *TRUST]) == 0
    one, two = (next(Path(p).glob("posterior-*.safetensors")) for p in ("posterior", "again"))
    assert one.read_bytes() == two.read_bytes()
    assert Path("posterior/recipe.json").read_text() == Path("again/recipe.json").read_text()
    build = ["index", "photos", "--posterior", "posterior", "--trust-recipe", "--quiet"]
    assert main([*build, "--rank-by", "expected"]) == 0
    assert main(["index", "--config", "index/run.toml", "--output", "index2", *TRUST]) == 0
    assert Path("index/index.json").read_text() == Path("index2/index.json").read_text()
    assert '"expected"' in Path("index2/index.json").read_text()
    own = ["fit", "--config", "posterior/run.toml", "--model", "my_model:embedder"]
    own += ["--structure", "kron", "--output", "third", "--json", "-"]
    code, out, _ = said(own, capsys)
    assert (code, json.loads(out)["structure"]) == (0, "kron")  # the command line wins
    shutil.copytree("photos", "others")
    again = ["fit", "--config", "posterior/run.toml", "others", "--output", "fourth"]
    code, out, err = said(again, capsys)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "names --model 'my_model:embedder', which is code" in err
    assert not Path("fourth").exists()
    assert main([*again, *TRUST]) == 0
    assert 'data = "others"' in Path("fourth/run.toml").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("stucture = 'diag'", "'stucture' is no option. Did you mean 'structure'?"),
        ("structure = 'digonal'", "'digonal' is not one of auto, diag, kron, full"),
        ("structure = true", "Give a text or a number."),
        ("optimize-prior = 'yes'", "Give true or false."),
        ("trust_recipe = true", "trust_recipe is not taken from a file"),
        ("trust-recipe = true\nmodel = 'x:y'", "trust-recipe is not taken from a file"),
        ("model = 'x:y'", "Give --trust-recipe on the command line"),
        ("size = 99999999", "from 1 to 8,192"),
        ("command = 'index'", "is of laplace-metric index, not of fit"),
        ("structure = ", "is not a TOML file"),
    ],
)
def test_a_config_that_is_wrong(content, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(content)
    code, out, err = said(["fit", "photos", "--config", "c.toml"], capsys)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


def test_a_config_without_a_reader_of_toml(tmp_path, monkeypatch, capsys):
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = said(["fit", "--config", str(tmp_path / "c.toml")], capsys)
    assert code == 2
    assert "pip install tomli" in err
    monkeypatch.undo()
    assert "cannot be read" in said(["fit", "--config", str(tmp_path / "c.toml")], capsys)[2]


def completed(line: str, folder: Path) -> list[str]:
    """What the generated script offers for a line, run by bash."""
    (folder / "completion.sh").write_text(script("bash"))
    words = [*line.split(" ")]
    code = f"""
source completion.sh
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
COMP_CWORD={len(words) - 1}
_laplace_metric
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p laplace-metric
"""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    ran = subprocess.run([bash, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    *found, registered = ran.stdout.splitlines()
    assert "-F _laplace_metric laplace-metric" in registered
    assert "bashcompinit" in script("zsh")
    return [word for word in found if word]


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("laplace-metric ", [*commands_in(""), "--help", "--version"]),
        ("laplace-metric se", ["search", "serve"]),
        ("laplace-metric fit --str", ["--structure"]),
        ("laplace-metric fit photos --structure ", ["auto", "diag", "kron", "full"]),
        ("laplace-metric fit photos --structure d", ["diag"]),
        ("laplace-metric fit ph", []),
        ("laplace-metric image-text f", ["fit"]),
        ("laplace-metric image-text fit --text", ["--text-model", "--text-column"]),
        ("laplace-metric completion ", ["bash", "zsh"]),
    ],
)
def test_completion(line, offers, tmp_path):
    found = completed(line, tmp_path)
    if line == "laplace-metric ":
        assert set(commands_in("")) <= set(found)
    else:
        assert sorted(found) == sorted(offers)


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
