"""The parser of the command line: options, words of mistakes, values of a --config.

Messages of the library in the words of the command line: arguments of Python are options there.

head='append'  ->  --head append          folds=300  ->  --cross-fit 300
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
from argparse import Action, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from laplace_metric._utils.names import SURROGATE
from laplace_metric._utils.version import __version__
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the nearest known names, or nothing where none is near.

    Examples
    --------
    >>> did_you_mean("serch", ["fit", "search"]), did_you_mean("x", ["fit"])
    (" Did you mean 'search'?", '')
    """
    near = get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


SAME = (
    "allow_fitted", "api_key_file", "batch", "batch_size", "cache", "calibrate", "channels",
    "checkpoint", "compact", "config", "cross_fit", "device", "dim", "distance", "engine", "epochs",
    "false_alarms", "head", "health_port", "hessian", "holdout", "host", "id_column", "image",
    "image_column", "insecure", "json", "label_column", "labels", "learning_rate", "margin",
    "max_body", "max_connections", "max_pixels", "max_waiting", "model", "no_cache", "objective",
    "open_set", "open_set_fraction", "optimize_prior", "output", "overwrite", "picture", "port",
    "positivity", "posterior", "precision", "prior_precision", "quiet", "rank_by", "reference",
    "seed", "size", "skip_unreadable", "structure", "text", "text_column", "text_model",
    "trust_recipe", "window",
)  # fmt: skip
"""Arguments that are options under their own name."""
OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in SAME},
    "k": "-k",
    "folds": "--cross-fit",
    "checkpoint_dir": "--checkpoint",
    "item_data": "--data",
}
"""What an argument is called on the command line."""
_VALUE = r"""'[^']*'|"[^"]*"|\.\.\.|[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|\w+|"""
_ARGUMENT = re.compile(rf"(?<![\w./=-])({'|'.join(OPTIONS)})=({_VALUE})")


def in_options(text: str) -> str:
    """A message whose arguments are written as options.

    Examples
    --------
    >>> in_options("pass head='append' for a new layer, or structure='diag' with k=3.")
    'pass --head append for a new layer, or --structure diag with -k 3.'
    >>> in_options("head=...: pass labels=, or compact=True")
    '--head NAME: pass --labels, or --compact'
    """
    return _ARGUMENT.sub(_as_option, text)


def _as_option(found: re.Match[str]) -> str:
    name, value = OPTIONS[found[1]], found[2].strip("'\"")
    if value in ("", "True"):
        return name
    return f"{name} {'NAME' if value == '...' else value}"


# The parser of a command: one line for a mistake, near names, values from a config file.


MISUSE = 2
CONFIG = "--config"
MOST_SIDE = 8_192
"""Pixels a side that images are scaled to."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line.

    Attributes
    ----------
    in_place : dict of str to Action
        Options with which a positional argument need not be given.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _WithExample, **options})
        self.in_place: dict[str, argparse.Action] = {}

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse like argparse after the values of a --config; those of the command line win."""
        given = None if args is None else list(args)
        if given is not None and not {"-h", "--help"} & set(given):
            given = self._with_config(given)
            for option, action in self.in_place.items():
                if any(word == option or word.startswith(f"{option}=") for word in given):
                    action.nargs, action.required = "?", False
        found, rest = super().parse_known_args(given, namespace)
        for option, action in self.in_place.items():
            if rest and not rest[0].startswith("-") and not action.required:
                self.error(f"give {action.metavar} or {option}: one of the two.")
        unknown = [word for word in rest if word.startswith("--")]
        if unknown:  # here, where the options of the command are known
            near = did_you_mean(unknown[0].split("=")[0], self.options())
            self.error(f"unrecognized arguments: {' '.join(rest)}.{near}")
        return found, rest

    def options(self) -> list[str]:
        """Names of all options, as they are written."""
        return [name for action in self._actions for name in action.option_strings]

    def choices_of(self) -> dict[str, list[str]]:
        """Return the values that may follow an option, where that is a list."""
        return {
            name: [str(choice) for choice in action.choices]
            for action in self._actions
            if action.choices
            for name in action.option_strings
        }

    def commands(self) -> dict[str, Parser]:
        """The parsers of the commands below this one."""
        groups = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return {} if not groups else dict(groups[0].choices)

    def _with_config(self, given: list[str]) -> list[str]:
        """The words of the file of --config before those given; positionals, if none is, behind."""
        if CONFIG not in self.options():
            return given
        typed, positionals = self._without_positionals(given)
        if typed.config is None:
            return given
        pass

        options, values = list[str](), dict[str, str]()
        actions = {action.dest: action for action in self._actions if action.dest != "help"}
        command = self.prog.split()[1:]
        for name, value in read_config(typed.config, command, actions, typed).items():
            if actions[name].option_strings:
                options += _words(actions[name], value)
            else:
                values[name] = str(value)
        names = [a.dest for a in self._get_positional_actions() if a.dest in values]
        told = [word for word in positionals if not word.startswith("-")]
        return [*options, *given, *([] if told else [values[name] for name in names])]

    def _without_positionals(self, given: list[str]) -> tuple[Any, list[str]]:
        """Parse the options alone: those that are typed, None for others; and what is left."""
        plain = Parser(prog=self.prog, add_help=False)
        for action in self._actions:
            if action.option_strings and action.dest != "help":
                twin = copy.copy(action)
                twin.required, twin.default = False, None
                plain._add_action(twin)
        return argparse.ArgumentParser.parse_known_args(plain, given)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += f".{did_you_mean(str(value), map(str, action.choices or ()))}"
            raise


def _words(action: argparse.Action, value: Any) -> Iterable[str]:
    option = action.option_strings[0]
    if action.nargs == 0:
        return [option] if value else []
    values = value if isinstance(value, list) else [value]
    return [f"{option}={item}" if option.startswith("--") else f"{option}{item}" for item in values]


class _WithExample(argparse.HelpFormatter):
    """Keeps the example, which is the last line of a help, in one piece."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Make a parser of integers from ``least`` to ``most``."""
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number {bounds}")
        return value

    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    return _number(text, "number above 0", lambda value: 0 < value < math.inf)


def share(text: str) -> float:
    """A number between 0 and 1, neither of them."""
    return _number(text, "share between 0 and 1", lambda value: 0 < value < 1)


def _number(text: str, what: str, valid: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not valid(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return value


# ``--config``: the options of a run in a TOML file, which every output folder has.


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
    """Read the options that a file sets, by the names in ``actions``; ``typed`` holds those typed.

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
