"""Commands and options as values; words of the command line and a config become a namespace.

Values that are typed win over those of a ``--config``, and these over defaults.
"""

from __future__ import annotations

import argparse
import json
import math
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
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
    """An option, or an argument by its place.

    Parameters
    ----------
    form : str
        Name, what the help calls its value, and the help: ``--size N: of images``; without a value
        ``--quiet: errors only``; by its place ``data DATA: ...``.
    read : callable
        Text -> value; raises ``argparse.ArgumentTypeError``.
    default : object
    required : bool
    repeated : bool
        Whether it may be given more than once; its value is a list.
    choices : tuple of str
    dest : str
        Name of the value; "": as the option.
    group : str
        Heading in the help.
    """

    form: str
    read: Callable[[str], Any] = str
    default: Any = None
    required: bool = False
    repeated: bool = False
    choices: tuple[str, ...] = ()
    dest: str = ""
    group: str = ""

    @property
    def name(self) -> str:
        """Name as it is typed; of an argument by its place, the name of the value."""
        return self.form.partition(":")[0].split()[0]

    @property
    def metavar(self) -> str:
        """Name of the value in the help; "" for a flag."""
        return self.form.partition(":")[0].partition(" ")[2]

    @property
    def help(self) -> str:
        """The help, with the default."""
        text = self.form.partition(": ")[2]
        if self.default in (None, []) or self.default is False or "default" in text:
            return text
        return f"{text}; default: {self.default}".removeprefix("; ")

    @property
    def key(self) -> str:
        """Name of the value in a namespace and in a config."""
        return self.dest or self.name.lstrip("-").replace("-", "_")

    @property
    def positional(self) -> bool:
        """True for an argument by its place."""
        return not self.name.startswith("-")

    def value(self, text: str) -> Any:
        """Read a value, one of the choices if there are some."""
        if self.choices and text not in self.choices:
            near = did_you_mean(text, self.choices)
            listed = ", ".join(self.choices)
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not one of {listed}.{near}")
        return self.read(text)

    def add_to(self, place: Any, *, required: bool) -> None:
        """Declare it to a parser or a group of argparse; its default is set later."""
        text = self.help.replace("%", "%%")
        if self.positional:
            nargs = None if self.required else "?"
            place.add_argument(self.key, metavar=self.metavar, nargs=nargs, help=text)
        elif not self.metavar:
            place.add_argument(
                self.name, dest=self.key, action="store_true", default=SUPPRESS, help=text
            )
        else:
            place.add_argument(
                self.name,
                dest=self.key,
                action="append" if self.repeated else "store",
                type=self.value,
                metavar=self.metavar,
                required=required and self.required,
                default=SUPPRESS,
                help=text,
            )


def argument(form: str, *, required: bool = True) -> Option:
    """Make an argument by its place, a path."""
    return Option(form, Path, required=required)


def flag(form: str) -> Option:
    """Make an option without a value."""
    return Option(form, default=False)


def choice(name: str, text: str, *choices: str) -> Option:
    """Make an option with one of some values; the first is the default."""
    form = f"{name} {{{','.join(choices)}}}: {text}"
    return Option(form, default=choices[0], choices=choices)


def grouped_under(title: str, *options: Option) -> tuple[Option, ...]:
    """Return options with a heading of their own in the help."""
    return tuple(replace(option, group=title) for option in options)


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
    example: str
    function: str = ""
    options: tuple[Option, ...] = ()

    def run(self, options: Namespace) -> None:
        """Import the function, and call it."""
        module, name = self.function.split(":")
        getattr(import_module(f"laplace_metric.cli.{module}"), name)(options)


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


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Make a reader of integers from ``least`` to ``most``."""
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number {bounds}")
        return value

    return read


def positive(text: str) -> float:
    """Read a finite number above 0."""
    return _number(text, "number above 0", math.inf)


def share(text: str) -> float:
    """Read a number between 0 and 1, neither of them."""
    return _number(text, "share between 0 and 1", 1)


def _number(text: str, what: str, end: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return value


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
    for option in command.options:
        if not option.positional:
            option.add_to(parser, required=False)
    typed, rest = parser.parse_known_args(words[:end])
    if unknown := [word.split("=")[0] for word in rest if word.startswith("-") and word != "-"]:
        near = did_you_mean(unknown[0], [option.name for option in command.options])
        parser.error(f"unrecognized option {unknown[0]}.{near}")
    places, given = [o for o in command.options if o.positional], [*rest, *words[end + 1 :]]
    if len(given) > len(places):
        parser.error(f"unrecognized arguments: {' '.join(given[len(places) :])}")
    values = vars(typed)
    for place, word in zip(places, given, strict=False):
        try:
            values[place.key] = place.value(word)
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument {place.metavar}: {error}")
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


class _WithExample(argparse.HelpFormatter):
    """Keeps the example, which is the last line of a help, in one piece."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


def help_of(name: str, command: Command, below: Iterable[tuple[str, Command]] = ()) -> str:
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
        for word, part in below:
            commands.add_parser(word, help=part.about.split(".")[0])
    return parser.format_help()


# ``--config``: the options of a run in a TOML file.


def _configured(
    name: str, command: Command, typed: dict[str, Any], parser: argparse.ArgumentParser
) -> dict[str, Any]:
    """Values that the file of --config sets; a model needs --trust-recipe among those typed."""
    path = typed["config"]
    content = _read_toml(path)
    of = content.pop("command", name)
    if of != name:
        raise InputError(f"--config {path} is of {PROGRAM} {of}, not of {name}.")
    options = {option.key: option for option in command.options if option.key != "config"}
    words, values = [], {}
    for written, value in content.items():
        key = written.replace("-", "_")
        if key == TRUST:
            raise InputError(
                f"--config {path}: {written} is not taken from a file. Remove that line, and give "
                "--trust-recipe on the command line if you trust the model that is named."
            )
        if key not in options:
            near = did_you_mean(key, options)
            raise InputError(f"--config {path}: {written!r} is no option.{near}")
        items = _items(path, written, value, options[key])
        if options[key].positional:
            values[key] = options[key].value(str(value))
        else:
            words += [_word(options[key], item) for item in items if item is not False]
    for key in MODELS:
        if key in content and not (typed.get(TRUST) or key in typed):
            option = options[key].name
            raise InputError(
                f"--config {path} names {option} {content[key]!r:.60}, which is code that whoever "
                "wrote the file chose. Give --trust-recipe on the command line to run it, or name "
                f"a model yourself with {option}."
            )
    return vars(parser.parse_args(words)) | values


def _read_toml(path: Path) -> dict[str, Any]:
    toml: Any = None
    for module in ("tomllib", "tomli"):
        try:
            toml = toml or import_module(module)
        except ModuleNotFoundError:
            continue
    if toml is None:
        raise MissingPackageError("tomli", "--config before Python 3.11", "pip install tomli")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"--config {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileFormatError(f"--config {path} is not a TOML file: {error}.") from error


def _items(path: Path, name: str, value: Any, option: Option) -> list[Any]:
    """The values of an option in a file, one unless it may be repeated."""
    is_flag = not option.metavar
    items = value if option.repeated and isinstance(value, list) else [value]
    if any(isinstance(item, bool) != is_flag or isinstance(item, (dict, list)) for item in items):
        wanted = "true or false" if is_flag else "a text or a number"
        raise InputError(f"--config {path}: {name} = {value!r:.60}. Give {wanted}.")
    return items


def _word(option: Option, value: Any) -> str:
    if not option.metavar:
        return option.name
    return f"{option.name}{'=' if option.name.startswith('--') else ''}{value}"


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
            line = f"{option} = {_written(value)}"
            if SURROGATE.search(line):  # TOML has no escape for bytes that are not UTF-8
                line = f"# Not UTF-8, give it on the command line: {line}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _written(value: Any) -> str:
    """A value of TOML, whose strings and lists are written as those of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
