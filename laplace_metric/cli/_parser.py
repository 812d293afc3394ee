"""Commands as parsers of argparse, made of tables of their options."""

from __future__ import annotations

import argparse
from argparse import Action, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

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
            For unknown options, values that an option does not take, and what is missing.
        """
        end = words.index("--") if "--" in words else len(words)
        behind = [f"./{word}" if word.startswith("-") else word for word in words[end + 1 :]]
        words = [*words[:end], *behind]
        options, rest = self.parse_known_intermixed_args(words)
        if unknown := [word.split("=")[0] for word in rest if word.startswith("-") and word != "-"]:
            known = (name for action in self.options for name in action.option_strings)
            self.error(f"unrecognized option {unknown[0]}.{did_you_mean(unknown[0], known)}")
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        values = {action.dest: getattr(options, action.dest) for action in self.options}
        return Namespace(command=self.name, **values)
