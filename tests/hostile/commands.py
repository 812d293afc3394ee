"""Lines of the command line, with good and bad files and options."""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import dataclass
from typing import Any

from laplace_metric.cli import main
from tests.hostile import places
from tests.hostile.arrays import Variant
from tests.hostile.places import DAMAGES


def command() -> Any:
    def run(name: str, *options: str) -> Any:
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                code = main([name, *options])
            except SystemExit as stopped:
                code = stopped.code
        return CommandResult(int(code or 0), out.getvalue(), error.getvalue())

    return run


@dataclass(frozen=True)
class CommandResult:
    """How a command of the command line ended."""

    code: int
    out: str
    error: str


FILES = [
    *("x.npy", "both.npz", "both.safetensors", "texts.csv", "empty.csv", "damaged.npz"),
    *("pickle.npy", "text.npy", "nan.npy", "flat.npy", "words.npy", "objects.npy", "none.npy"),
    *("folder", "images", "no such.npy", "lines.txt", "y.npy", "posterior", "index"),
]
ODD = ["", "-1", "0", "1", "x", "nan", "inf", "1e400", "2.5", "a\0b"]


def command_line(rng: random.Random) -> list[str]:
    """A command with good or bad files and options."""
    folder = places.workplace()

    def file(good: str) -> str:
        name = good if rng.random() < 0.6 else rng.choice(FILES)
        path = folder / name
        if name in ("posterior", "index") and rng.random() < 0.6:
            path = rng.choice(DAMAGES).make(path, rng)
        return str(path)

    name = rng.choice(["fit", "embed", "index", "search", "evaluate", "report", "image-text"])
    made = {
        "fit": [file("x.npy"), "--output", str(places.scratch())],
        "embed": [file("x.npy"), "--posterior", file("posterior"), "--output"],
        "index": [file("x.npy"), "--posterior", file("posterior"), "--output"],
        "search": [file("index"), file("x.npy")],
        "evaluate": [file("index"), file("x.npy")],
        "report": [file("index"), file("x.npy"), "--output", str(places.scratch()) + ".html"],
        "image-text": [*rng.choice([["search"], ["fit", "--model", "no:such"]]), file("texts.csv")],
    }[name]
    if name == "embed":
        made.append(str(places.scratch()) + rng.choice([".npz", ".safetensors", ".x"]))
    if name == "index":
        made.append(str(places.scratch()))
    if name not in ("search", "image-text"):
        made += ["--labels", file("y.npy")]
    extra = {
        "fit": "--structure --distance --hessian --prior-precision --head --model --holdout",
        "embed": "--model --device",
        "index": "--engine --rank-by --holdout --seed",
        "search": "-k --model --device",
        "evaluate": "--model --open-set --device",
        "report": "--model --device",
        "image-text": "--text --image -k --model --image-column --holdout",
    }[name].split()
    shared = ["--size", "--channels", "--batch-size", "--text-column", "--label-column", "--labels"]
    if rng.random() < 0.5:
        made += [rng.choice([*extra, *shared]), rng.choice(ODD)]
    if name == "index" and rng.random() < 0.5:
        made += ["--holdout", "0.4"]
    if name == "search" and rng.random() < 0.5:
        made += [
            "--output",
            str(places.scratch()) + rng.choice([".csv", ".json", ".x"]),
        ]
    return [name, *made, "--quiet"]


COMMANDS = Variant("command", lambda _plain, rng: command_line(rng))
