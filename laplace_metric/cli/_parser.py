"""Commands as parsers of argparse, made of tables of their options.

Values on the command line win over those of a ``--config``, and these over defaults.
"""

from __future__ import annotations

import argparse
from argparse import Action, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from laplace_metric.cli._config import MODELS, TRUST, read_toml
from laplace_metric.cli._option_lines import add_option
from laplace_metric.cli._words import PROGRAM, did_you_mean
from laplace_metric.errors import InputError


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
        Name of the command.
    text : str
        A line about it, whose first sentence is for the list of commands; words after its name in
        the example that the help ends with; and its options, one a line, see ``add_option``.
        ``[heading]`` stands above the options that follow it.
    below : mapping of word to text
        Commands of a group, for its help.

    Attributes
    ----------
    name, example : str
        Name of the command, and the words after it in its example.
    options : list of Action
        Options in the order of the text.
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
        content = read_toml(path, file)
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
