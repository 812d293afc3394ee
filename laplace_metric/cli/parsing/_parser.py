"""The parser of a command: one line for a mistake, near names, values from a config file."""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from laplace_metric.cli._nearest import did_you_mean

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
        """As argparse does, after the values of a --config; those of the command line win."""
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
        """What may follow an option, where that is a list."""
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
        from laplace_metric.cli.parsing._config import read_config

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
