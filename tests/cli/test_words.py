"""What is said on the command line names its options, not the arguments of Python."""

from __future__ import annotations

import re
import warnings
from argparse import Action
from importlib.util import find_spec

import pytest

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli import main
from laplace_metric.cli._models import load_model
from laplace_metric.cli._options import COMMANDS, in_options, option_names, parser_of
from laplace_metric.cli._reporter import Reporter
from tests.cli.workshop import write_vectors

NAMES = [name for name, (_, function) in COMMANDS.items() if function]
FIT = ["fit", "photos", "--model", "my_model:embedder", "--quiet"]
ALIASES = {"folds", "checkpoint_dir"}
"""Arguments of the library whose options are called otherwise."""


def options_of(name: str) -> list[Action]:
    return [option for option in parser_of(name).options if option.option_strings]


@pytest.mark.parametrize("name", NAMES)
def test_each_option_has_its_words(name):
    for option in options_of(name):
        key, word = option.dest, option.option_strings[0]
        assert in_options(f"{key}='x y': give more.") == f"{word} x y: give more."
        assert in_options(f"Give ({key}=0.5, or").startswith(f"Give ({word} 0.5, or")
        assert in_options(f"with {key}=...") == f"with {word} NAME"
        assert in_options(f"pass {key}=, or") == f"pass {word}, or"
        if option.nargs == 0:
            assert in_options(f"{key}=True.") == f"{word}."


def test_no_words_of_options_that_there_are_not():
    keys = {option.dest for name in NAMES for option in options_of(name)}
    assert set(option_names()) == keys | ALIASES
    assert in_options("folds=300: too many") == "--cross-fit 300: too many"
    assert in_options("open_set_fraction=0.2: no") == "--open-set-fraction 0.2: no"
    assert in_options("checkpoint_dir='a/b' is in use") == "--checkpoint a/b is in use"


@pytest.mark.parametrize(
    "text",
    [
        "photos/head=3.png cannot be read",
        "backend='nnj' knows nnj.Linear",
        "ahead=3, my_head=4, x.head=5",
        "head 'fc' ran 2 times",
        "--head=fc is given",
    ],
)
def test_what_else_has_an_equals_sign_stays(text):
    assert in_options(text) == text


def test_errors_and_warnings_are_written_so(workplace, capsys):
    assert main([*FIT, "--head", "nose"]) == 2
    assert "error: --head nose is not a layer of the model" in capsys.readouterr().err
    (workplace / "relu.py").write_text(
        "from torch import nn\n"
        "model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())\n"
        "bare = nn.Flatten()\n"
    )
    assert main([*FIT[:3], "relu:model"]) == 2
    says = capsys.readouterr().err
    assert "it looks like relu(z)" in says
    assert "with --head NAME, drop what follows it, or pass --head append for a new" in says
    assert main([*FIT[:3], "relu:bare"]) == 2
    assert "pass --head append for an identity-initialised" in capsys.readouterr().err
    assert main([*FIT, "--distance", "euclidean"]) == 0
    with Reporter().warnings():
        warnings.warn("use hessian='positives' with distance='euclidean'", stacklevel=1)
    assert "note: use --hessian positives with --distance euclidean" in capsys.readouterr().err


SAVED = {
    "embed": ["photos", "--posterior", "posterior", "--output", "o.npz"],
    "index": ["photos", "--posterior", "posterior", "--output", "again"],
    "search": ["index", "photos"],
    "evaluate": ["index", "photos"],
    "report": ["index", "photos"],
    "serve": ["index", "--port", "0"],
}
"""Commands that load a model whose name a folder holds."""


def test_every_command_that_loads_a_recipe_asks_for_trust_by_its_option(workplace, capsys):
    has = {name for name in NAMES if "trust_recipe" in {option.dest for option in options_of(name)}}
    assert has == {*SAVED, "image-text search"}
    assert main([*FIT, "--holdout", "0.4"]) == 0
    trusted = ["--posterior", "posterior", "--trust-recipe", "--quiet"]
    assert main(["index", "photos", *trusted]) == 0
    for name, arguments in SAVED.items():
        if name == "serve" and find_spec("fastapi") is None:
            continue
        capsys.readouterr()
        assert main([name, *arguments]) == 2
        says = capsys.readouterr().err
        assert "it would import 'my_model' and call 'embedder' of it" in says
        (flag,) = re.findall(r"Give (--[\w-]+) to run it, or name a model yourself", says)
        parser_of(name).parse([*arguments, flag])


def test_margin_and_positivity_are_options(workplace):
    assert main([*FIT, "--positivity", "clip", "--margin", "0.5", "--distance", "euclidean"]) == 0
    settings = LaplaceEmbedder.load("posterior", load_model("my_model:embedder").model).settings
    assert (settings.positivity, settings.margin) == ("clip", 0.5)


def test_warnings_of_loading_are_notes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "laplace_metric.laplace.fit._fit.NEGATIVE_SHARE", 0.0
    )  # all posteriors warn
    write_vectors("x", 200)
    told = "of the curvature was negative"
    assert main(["fit", "x.npz", "--quiet"]) == 0
    assert main(["index", "x.npz", "--posterior", "posterior", "--cross-fit", "0"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if told in line]
    assert [line[:6] for line in lines] == ["note: "]
    assert main(["embed", "x.npz", "--posterior", "posterior", "--output", "e.npz", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
