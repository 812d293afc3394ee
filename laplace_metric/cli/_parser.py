"""Commands as parsers of argparse, made of tables of their options; values of a ``--config``.

Values that are typed win over those of a ``--config``, and these over defaults.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from argparse import Action, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from laplace_metric._utils import __version__
from laplace_metric._utils.names import SURROGATE
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError

PROGRAM = "laplace-metric"
HELP = {"-h", "--help"}
RUN = "run.toml"
"""The config of a run, which every output folder has."""
TRUST = "trust_recipe"
MODELS = ("model", "text_model")
"""Options that name code."""
NOT_SAVED = ("command", "config", TRUST, "json", "quiet", "overwrite")
"""Values of a namespace that concern one run alone, or are not options."""
LINE = re.compile(
    r"(?P<name>[\w-]+)( (?P<value>[\w|]+)(?P<mark>[!*]?)(>=(?P<least>\d+))?(<=(?P<most>\d+))?)?"
    r"( as (?P<key>\w+))?( = (?P<default>\S+?))?(: (?P<help>.*))?"
)


class _WithExample(argparse.HelpFormatter):
    """Keeps the example, which is the last line of a help, in one piece."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, or of a group of commands; errors are ``InputError`` of one line.

    Parameters
    ----------
    name : str
    text : str
        A line about it, whose first sentence is for the list of commands; words after its name in
        the example that the help ends with; and its options, one a line, see ``add_option``.
        ``[heading]`` stands above the options that follow it.
    below : mapping of word to text
        Commands of a group, for its help.

    Attributes
    ----------
    name, example : str
    options : list of Action
        Those of the text, in its order.
    """

    def __init__(self, name: str, text: str, below: Mapping[str, str] | None = None) -> None:
        about, self.example, *lines = text.splitlines()
        self.name, called = name, f"{PROGRAM} {name}".strip()
        super().__init__(
            prog=called,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=self.example and f"example:\n  {called} {self.example}",
            formatter_class=_WithExample,
        )
        self.options = list[Action]()
        place: Any = self
        for line in lines:
            if line.startswith("["):
                heading = line.strip("[]")
                place = self.add_argument_group(heading) if heading else self
            else:
                self.options.append(add_option(place, line))
        if below:
            commands = self.add_subparsers(
                title="commands", metavar="COMMAND", parser_class=argparse.ArgumentParser
            )
            for word, part in below.items():
                commands.add_parser(word, help=part.splitlines()[0].split(".")[0])

    def error(self, message: str) -> NoReturn:
        """Raise ``InputError``, which says where the help is."""
        raise InputError(f"{message} (see {self.prog} --help)")

    def parse(self, words: Sequence[str]) -> Namespace:
        """Read the words after the name of a command.

        Raises
        ------
        InputError
            For unknown options, values that an option does not take, and what is missing; for a
            --config that cannot be used.
        """
        end = words.index("--") if "--" in words else len(words)
        behind = [f"./{word}" if word.startswith("-") else word for word in words[end + 1 :]]
        words = [*words[:end], *behind]
        named = {word.split("=")[0] for word in words}
        if "config" in {action.dest for action in self.options}:
            first = CommandParser(self.name, "a\n\n--config FILE")
            if (path := first.parse_known_args(words)[0].config) is not None:
                self._configure(path, named)
        options, rest = self.parse_known_intermixed_args(words)
        if unknown := [word.split("=")[0] for word in rest if word.startswith("-") and word != "-"]:
            known = (name for action in self.options for name in action.option_strings)
            self.error(f"unrecognized option {unknown[0]}.{did_you_mean(unknown[0], known)}")
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        values = {action.dest: getattr(options, action.dest) for action in self.options}
        return Namespace(command=self.name, **values)

    def _configure(self, path: Path, named: set[str]) -> None:
        """Make values of a --config defaults; a model needs --trust-recipe among what is typed."""
        file = f"--config {path}"
        content = _read_toml(path, file)
        of = content.pop("command", self.name)
        if of != self.name:
            raise InputError(f"{file} is of {PROGRAM} {of}, not of {self.name}.")
        actions = {action.dest: action for action in self.options if action.dest != "config"}
        for written, value in content.items():
            key = written.replace("-", "_")
            if key == TRUST:
                raise InputError(
                    f"{file}: {written} is not taken from a file. Remove that line, and give "
                    "--trust-recipe on the command line if you trust the model that is named."
                )
            if key not in actions:
                raise InputError(f"{file}: {written!r} is no option.{did_you_mean(key, actions)}")
            action = actions[key]
            is_flag, repeated = action.nargs == 0, isinstance(action.default, list)
            items = value if repeated and isinstance(value, list) else [value]
            if any(isinstance(x, bool) != is_flag or isinstance(x, (dict, list)) for x in items):
                wanted = "true or false" if is_flag else "a text or a number"
                raise InputError(f"{file}: {written} = {value!r:.60}. Give {wanted}.")
            if key in MODELS and not named & {"--trust-recipe", *action.option_strings}:
                raise InputError(
                    f"{file} names {action.option_strings[0]} {value!r:.60}, which is code that "
                    "whoever wrote the file chose. Give --trust-recipe on the command line to run "
                    f"it, or name a model yourself with {action.option_strings[0]}."
                )
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
            if repeated and not named & set(action.option_strings):
                action.default = [self._get_value(action, str(item)) for item in items]
            elif not repeated:
                action.default = value if is_flag else str(value)


def add_option(place: Any, line: str) -> Action:
    """Add an option to a parser: ``--name VALUE>=least<=most as key = default: help``.

    ``VALUE`` decides what is read, see ``reader_of``; ``a|b`` are choices. ``VALUE!`` is needed,
    ``VALUE*`` may be repeated. A name without dashes is an argument by its place; a name is enough.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> option = add_option(parser, "--seed N>=0 = 3: of the holdout")
    >>> option.dest, option.help, parser.parse_args([]), parser.parse_args(["--seed", "7"])
    ('seed', 'of the holdout; default: 3', Namespace(seed=3), Namespace(seed=7))
    """
    found = LINE.fullmatch(line)
    assert found is not None, line
    name, value, default = found["name"], found["value"] or "", found["default"]
    text, needed = found["help"] or "", found["mark"] == "!"
    if default is not None and "default" not in text:
        text = f"{text}; default: {default}".removeprefix("; ")
    how: dict[str, Any] = {"help": text.replace("%", "%%"), "default": default}
    if value:
        how["type"] = reader_of(value, int(found["least"] or 1), float(found["most"] or math.inf))
        how["metavar"] = value
    if "|" in value:
        how["metavar"], how["choices"] = None, [how["type"](word) for word in value.split("|")]
    if name.startswith("-"):
        how |= {"dest": found["key"] or name.lstrip("-").replace("-", "_"), "required": needed}
    elif not needed:
        how["nargs"] = "?"
    if found["mark"] == "*":
        how |= {"action": "append", "default": []}
    elif not value:
        how |= {"action": "store_true", "default": False}
    action: Action = place.add_argument(name, **how)
    return action


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known names; empty if none is near.

    Examples
    --------
    >>> did_you_mean("serch", ["fit", "search"]), did_you_mean("x", ["fit"])
    (" Did you mean 'search'?", '')
    """
    near = get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


# Values of options.


_PATHS = ("DATA", "DIR", "FILE", "FOLDER", "INDEX", "PATH", "QUERIES", "RULE", "TABLE")
_SHARES = ("A", "C", "F", "P", "R", "S", "SHARE")


def reader_of(value: str, least: int = 1, most: float = math.inf) -> Callable[[str], Any]:
    """Return what reads the value of an option, which its name in the help decides."""
    if value in _PATHS:
        return Path
    if value in _SHARES:
        return _number(float, lambda x: 0 < x < 1, "share between 0 and 1")
    if value in ("X", "MIB"):
        return _number(float, lambda x: 0 < x < math.inf, "number above 0")
    if value in ("N", "K"):
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,.0f}"
        return _number(int, lambda x: least <= x <= most, f"whole number {bounds}")
    if "|" in value:
        return partial(_choice, value.split("|"))
    return str


def _choice(choices: list[str], text: str) -> str | int:
    if text not in choices:
        near = did_you_mean(text, choices)
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not one of {', '.join(choices)}.{near}")
    return int(text) if text.isdigit() else text


def _number(
    make: Callable[[str], float], fits: Callable[[float], bool], what: str
) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = make(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a {what}")
        return value

    return read


# ``--config``: the options of a run in a TOML file.


def _read_toml(path: Path, file: str) -> dict[str, Any]:
    for module in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            toml: Any = import_module(module)
            break
    else:
        raise MissingPackageError("tomli", "--config before Python 3.11", "pip install tomli")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileFormatError(f"{file} is not a TOML file: {error}.") from error


def run_text(options: Namespace) -> str:
    """Return the options of a run as TOML: all that it had, defaults too.

    Examples
    --------
    >>> print(run_text(Namespace(command="fit", data=Path("x"), seed=0)))
    # laplace-metric ... on the command line, where options given there win, and ...model.
    command = "fit"
    data = "x"
    seed = 0
    <BLANKLINE>
    """
    lines = [
        f"# {PROGRAM} {__version__}. To run it again from the same folder, give --config with this "
        "file",
        "# on the command line, where options given there win, and --trust-recipe for its model.",
        f"command = {json.dumps(options.command)}",
    ]
    for option, value in vars(options).items():
        if option not in NOT_SAVED and value is not False and value not in (None, []):
            written = json.dumps(value, ensure_ascii=False, default=str)  # TOML, but for one sign
            line = f"{option} = {written}".replace("\x7f", "\\u007f")
            if SURROGATE.search(line):  # TOML has no escape for bytes that are not UTF-8
                line = f"# Not UTF-8, give it on the command line: {line}"
            lines.append(line)
    return "\n".join(lines) + "\n"
