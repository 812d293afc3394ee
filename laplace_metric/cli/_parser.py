"""Commands and options as values; words of the command line and a config become a namespace.

Values that are typed win over those of a ``--config``, and these over defaults.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from laplace_metric._utils.names import SURROGATE
from laplace_metric._utils.version import __version__
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


@dataclass(frozen=True)
class Option:
    """An option, or an argument by its place: a line of the table.

    Parameters
    ----------
    name : str
        As it is typed; of an argument by its place, the name of the value.
    metavar : str
        Name of the value in the help; "" for a flag.
    help : str
    key : str
        Name of the value in a namespace and in a config.
    read : callable
        Text -> value; raises ``argparse.ArgumentTypeError``.
    default : object
    required : bool
    repeated : bool
        Whether it may be given more than once; its value is a list.
    choices : list of str
    group : str
        Heading in the help.
    """

    name: str
    metavar: str
    help: str
    key: str
    read: Callable[[str], Any]
    default: Any
    required: bool
    repeated: bool
    choices: list[str]
    group: str

    @property
    def positional(self) -> bool:
        """True for an argument by its place."""
        return not self.name.startswith("-")

    def add_to(self, place: Any, *, required: bool) -> None:
        """Declare it to a parser or a group of argparse; its default is set later."""
        how: dict[str, Any] = {"help": self.help.replace("%", "%%")}
        if self.positional:
            how |= {"metavar": self.metavar, "nargs": None if self.required else "?"}
        else:
            how |= {"dest": self.key, "default": SUPPRESS, "action": "store_true"}
        if self.metavar and not self.positional:
            action = "append" if self.repeated else "store"
            how |= {"action": action, "type": self.read, "metavar": self.metavar}
            how["required"] = required and self.required
        place.add_argument(self.name, **how)


@dataclass(frozen=True)
class Command:
    """A command.

    Parameters
    ----------
    about : str
        Sentences for the help; the first is for the list of commands.
    example : str
        Words after its name, in the example that the help ends with.
    function : str
        ``module:name`` of the function that carries it out, in ``laplace_metric.cli``; "" for a
        group of commands.
    options : tuple of Option
    """

    about: str
    example: str = ""
    function: str = ""
    options: tuple[Option, ...] = ()


LINE = re.compile(
    r"(?P<name>[\w-]+)( (?P<value>[\w|]+)(?P<mark>[!*]?)(>=(?P<least>\d+))?(<=(?P<most>\d+))?)?"
    r"( as (?P<key>\w+))?( = (?P<default>\S+?))?(: (?P<help>.*))?"
)


def command(text: str, function: str = "") -> Command:
    """Make a command of its text: about it, an example, and its options, one a line."""
    about, example, *lines = text.splitlines()
    return Command(about, example, function, tuple(options_of(lines)))


def options_of(lines: Iterable[str]) -> Iterator[Option]:
    """Read options: ``--name VALUE>=least<=most as key = default: help``; a name is enough.

    ``VALUE`` decides what is read, see ``reader_of``; ``a|b`` are choices. ``VALUE!`` is needed,
    ``VALUE*`` may be repeated. A name without dashes is an argument by its place. ``[heading]``
    stands above the options that follow it.

    Examples
    --------
    >>> [option] = options_of(["--seed N>=0 = 3: of the holdout"])
    >>> option.key, option.read("7"), option.default, option.help
    ('seed', 7, 3, 'of the holdout; default: 3')
    """
    group = ""
    for line in lines:
        if line.startswith("["):
            group = line.strip("[]")
            continue
        found = LINE.fullmatch(line)
        assert found is not None, line
        name, value, default = found["name"], found["value"] or "", found["default"]
        choices = value.split("|") if "|" in value else []
        read = reader_of(value, int(found["least"] or 1), float(found["most"] or math.inf))
        text, metavar = found["help"] or "", value
        if choices:
            metavar = f"{{{','.join(choices)}}}" if name.startswith("-") else name.upper()
        if default is not None and "default" not in text:
            text = f"{text}; default: {default}".removeprefix("; ")
        unset: Any = [] if found["mark"] == "*" else None if value else False
        yield Option(
            name,
            metavar,
            text,
            found["key"] or name.lstrip("-").replace("-", "_"),
            read,
            unset if default is None else read(default),
            required=found["mark"] == "!",
            repeated=found["mark"] == "*",
            choices=choices,
            group=group,
        )


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


# Words -> values.


def parse(name: str, command: Command, words: Sequence[str]) -> Namespace:
    """Read the words after the name of a command.

    Raises
    ------
    InputError
        For unknown options, values that an option does not take, and what is missing; for a
        --config that cannot be used.
    """
    end = words.index("--") if "--" in words else len(words)
    parser = _Parser(prog=f"{PROGRAM} {name}", add_help=False)
    places = [option for option in command.options if option.positional]
    for option in command.options:
        if not option.positional:
            option.add_to(parser, required=False)
    typed, rest = parser.parse_known_args(words[:end])
    if unknown := [word.split("=")[0] for word in rest if word.startswith("-") and word != "-"]:
        near = did_you_mean(unknown[0], [option.name for option in command.options])
        parser.error(f"unrecognized option {unknown[0]}.{near}")
    given = [*rest, *words[end + 1 :]]
    if len(given) > len(places):
        parser.error(f"unrecognized arguments: {' '.join(given[len(places) :])}")
    values = vars(typed)
    for place, word in zip(places, given, strict=False):
        values[place.key] = parser.value(place, word)
    if "config" in values:
        values = _configured(name, command, values, parser) | values
    missing = [o for o in command.options if o.required and o.key not in values]
    if missing:
        listed = ", ".join(o.metavar if o.positional else o.name for o in missing)
        parser.error(f"the following arguments are required: {listed}")
    found = {o.key: values.get(o.key, o.default) for o in command.options}
    return Namespace(command=name, **found)


class _Parser(argparse.ArgumentParser):
    """Raises an error of one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")

    def value(self, option: Option, text: str) -> Any:
        """The value of an option that was not read from the words."""
        try:
            return option.read(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {option.metavar if option.positional else option.name}: {error}")


class _WithExample(argparse.HelpFormatter):
    """Keeps the example, which is the last line of a help, in one piece."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


def help_of(name: str, command: Command, below: Mapping[str, Command]) -> str:
    """Return the help of a command, or of a group with the commands below it."""
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}".strip(),
        description=f"{command.about[0].upper()}{command.about[1:]}.",
        epilog=command.example and f"example:\n  {PROGRAM} {name} {command.example}",
        formatter_class=_WithExample,
    )
    if not name:
        parser.add_argument("--version", action="store_true", help="show the version, and stop")
    for group, options in groupby(command.options, key=lambda option: option.group):
        place = parser.add_argument_group(group) if group else parser
        for option in options:
            option.add_to(place, required=True)
    if below:
        commands = parser.add_subparsers(title="commands", metavar="COMMAND")
        for word, part in below.items():
            commands.add_parser(word, help=part.about.split(".")[0])
    return parser.format_help()


# ``--config``: the options of a run in a TOML file.


def _configured(
    name: str, command: Command, typed: dict[str, Any], parser: _Parser
) -> dict[str, Any]:
    """Values that the file of --config sets; a model needs --trust-recipe among those typed."""
    file = f"--config {typed['config']}"
    content = _read_toml(typed["config"], file)
    of = content.pop("command", name)
    if of != name:
        raise InputError(f"{file} is of {PROGRAM} {of}, not of {name}.")
    options = {option.key: option for option in command.options if option.key != "config"}
    values = {}
    for written, value in content.items():
        key = written.replace("-", "_")
        if key == TRUST:
            raise InputError(
                f"{file}: {written} is not taken from a file. Remove that line, and give "
                "--trust-recipe on the command line if you trust the model that is named."
            )
        if key not in options:
            raise InputError(f"{file}: {written!r} is no option.{did_you_mean(key, options)}")
        option = options[key]
        items = value if option.repeated and isinstance(value, list) else [value]
        is_flag = not option.metavar
        if any(isinstance(x, bool) != is_flag or isinstance(x, (dict, list)) for x in items):
            wanted = "true or false" if is_flag else "a text or a number"
            raise InputError(f"{file}: {written} = {value!r:.60}. Give {wanted}.")
        read = [item if is_flag else parser.value(option, str(item)) for item in items]
        values[key] = read if option.repeated else read[0]
        if key in MODELS and not (typed.get(TRUST) or key in typed):
            raise InputError(
                f"{file} names {option.name} {value!r:.60}, which is code that whoever wrote the "
                "file chose. Give --trust-recipe on the command line to run it, or name a model "
                f"yourself with {option.name}."
            )
    return values


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
