"""``--config``: the options of a run in a TOML file, which every output folder has."""

from __future__ import annotations

import json
from argparse import Action, Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from laplace_metric._utils.version import __version__
from laplace_metric.cli._nearest import did_you_mean
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError

RUN = "run.toml"
COMMAND = "command"
NOT_KEPT = ("function", "config", "json", "quiet", "overwrite")
"""What is of one run alone, or not an option."""


def read_config(
    path: Path, command: Sequence[str], actions: Mapping[str, Action]
) -> dict[str, Any]:
    """What a file sets, by the names in ``actions``.

    Raises
    ------
    InputError
        If it is of another command, or has a name or a value that the command does not take.
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
    return {_known(path, name, value, actions): value for name, value in content.items()}


def _known(path: Path, name: str, value: Any, actions: Mapping[str, Action]) -> str:
    """The name as argparse has it."""
    dest = name.replace("-", "_")
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
    # laplace-metric ... on the command line, where options given there win.
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
        "# on the command line, where options given there win.",
    ]
    lines.append(f"{COMMAND} = {json.dumps(command)}")
    for option, value in vars(options).items():
        if option not in NOT_KEPT and value is not None and value is not False and value != []:
            lines.append(f"{option} = {_written(value)}")
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
