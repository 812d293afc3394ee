"""``--config``: the options of a run in a TOML file, which every output folder has."""

from __future__ import annotations

import json
from argparse import Action, Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from laplace_metric._utils.names import SURROGATE
from laplace_metric._utils.version import __version__
from laplace_metric.cli._nearest import did_you_mean
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError

RUN = "run.toml"
COMMAND = "command"
TRUST = "trust_recipe"
NOT_KEPT = ("function", "config", TRUST, "json", "quiet", "overwrite")
"""What is of one run alone, or not an option."""
MODELS = ("model", "text_model")
"""Options that name code."""


def read_config(
    path: Path, command: Sequence[str], actions: Mapping[str, Action], typed: Namespace
) -> dict[str, Any]:
    """What a file sets, by the names in ``actions``; ``typed`` holds what the command line sets.

    Raises
    ------
    InputError
        If it is of another command, has a name or a value that the command does not take, or names
        a model without --trust-recipe on the command line.
    FileFormatError
        If it is no TOML file.
    MissingPackageError
        Before Python 3.11, if tomli is not installed.
    """
    toml = _toml()
    try:
        content = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileFormatError(f"--config {path} is not a TOML file: {error}.") from error
    of = content.pop(COMMAND, " ".join(command))
    if of != " ".join(command):
        raise InputError(f"--config {path} is of laplace-metric {of}, not of {' '.join(command)}.")
    found = {_known(path, name, value, actions): value for name, value in content.items()}
    for name in MODELS:
        if name in found and not typed.trust_recipe and getattr(typed, name) is None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--config {path} names {option} {found[name]!r:.60}, which is code that whoever "
                "wrote the file chose. Give --trust-recipe on the command line to run it, or name "
                f"a model yourself with {option}."
            )
    return found


def _known(path: Path, name: str, value: Any, actions: Mapping[str, Action]) -> str:
    """The name as argparse has it."""
    dest = name.replace("-", "_")
    if dest == TRUST:
        raise InputError(
            f"--config {path}: {name} is not taken from a file. Remove that line, and give "
            "--trust-recipe on the command line if you trust the model that is named."
        )
    known = set(actions) - {*NOT_KEPT[:2]}
    if dest not in known:
        raise InputError(f"--config {path}: {name!r} is no option.{did_you_mean(dest, known)}")
    action = actions[dest]
    flag, repeated = action.nargs == 0, isinstance(action.default, list)
    items = value if repeated and isinstance(value, list) else [value]
    if any(isinstance(item, bool) != flag or isinstance(item, (dict, list)) for item in items):
        wanted = "true or false" if flag else "a text or a number"
        raise InputError(f"--config {path}: {name} = {value!r:.60}. Give {wanted}.")
    return dest


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise MissingPackageError("tomli", "--config before Python 3.11", "pip install tomli")


def run_text(options: Namespace) -> str:
    """The options of a run as TOML: all that it had, defaults too.

    Examples
    --------
    >>> print(run_text(Namespace(function="laplace_metric.cli._fit:fit", data=Path("x"), seed=0)))
    # laplace-metric ... on the command line, where options given there win, and ...model.
    command = "fit"
    data = "x"
    seed = 0
    <BLANKLINE>
    """
    name = options.function.rpartition(":")[2]
    command = FUNCTIONS.get(name, name)
    lines = [
        f"# laplace-metric {__version__}. To run it again from the same folder, give --config "
        "with this file",
        "# on the command line, where options given there win, and --trust-recipe for its model.",
    ]
    lines.append(f"{COMMAND} = {json.dumps(command)}")
    for option, value in vars(options).items():
        if option not in NOT_KEPT and value is not None and value is not False and value != []:
            line = f"{option} = {_written(value)}"
            if SURROGATE.search(line):  # TOML has no escape for bytes that are not UTF-8
                line = f"# Not UTF-8, give it on the command line: {line}"
            lines.append(line)
    return "\n".join(lines) + "\n"


FUNCTIONS = {"fit_pairs": "image-text fit"}
"""Commands that are not called as the function that carries them out."""


def _written(value: Any) -> str:
    """A value of TOML, whose strings and lists are written as those of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
