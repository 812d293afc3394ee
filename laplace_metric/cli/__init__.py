"""The command line; the module of a command, and torch with it, is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from io import TextIOWrapper

from laplace_metric._utils.names import one_line
from laplace_metric._utils.version import __version__
from laplace_metric.cli._options import COMMANDS, commands_in, in_options, parser_of
from laplace_metric.cli._parser import HELP, PROGRAM, did_you_mean
from laplace_metric.cli._streams import others_to_stderr
from laplace_metric.errors import InputError, LaplaceMetricError, WriteError

NOT_WRITTEN, MISUSE, INTERRUPTED = 1, 2, 130
SPEAKING = ("serve", "demo", "completion")
"""Commands that print by themselves."""
RESUMED = ("fit", "embed")
"""Commands that go on where they were interrupted."""
NO_MEMORY = "out of memory: give a smaller --batch-size, or a smaller --size of images"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0.

    It is 1 if a result cannot be written, 2 for a user's mistake, 130 for Ctrl-C. Any other
    exception is a bug, and raised.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # names may hold what its encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except (LaplaceMetricError, OSError, MemoryError) as error:
        what = str(error) or f"{NO_MEMORY}."
        print(f"{PROGRAM}: error: {one_line(in_options(what))}", file=sys.stderr)
        return NOT_WRITTEN if isinstance(error, WriteError) else MISUSE


def _run(words: list[str]) -> int:
    name, rest = _named(words)
    function, parser = COMMANDS[name][1], parser_of(name)
    if rest == ["--version"] and not name:
        print(f"{PROGRAM} {__version__}")
        return 0
    if HELP & set(rest) or not (rest or function):
        print(parser.format_help(), end="")
        return 0
    if not function:
        raise InputError(f"{rest[0]!r:.60} is no option of {parser.prog}.")
    options = parser.parse(rest)
    try:
        with nullcontext() if name in SPEAKING else others_to_stderr():
            module, called = function.split(":")
            getattr(import_module(f"laplace_metric.cli.{module}"), called)(options)
    except KeyboardInterrupt:
        if not getattr(options, "quiet", False):
            print(file=sys.stderr)  # behind a bar
        how = ". The same command goes on from where it was" if name in RESUMED else ""
        print(f"{PROGRAM}: interrupted{how}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _named(words: list[str]) -> tuple[str, list[str]]:
    """The command that the first words name, or a group of them, and the words that follow."""
    name, rest = "", words
    while rest and not rest[0].startswith("-") and (known := commands_in(name)):
        if rest[0] not in known:
            where = f"{PROGRAM} {name}".strip()
            raise InputError(
                f"{where} has no command {rest[0]!r:.60}.{did_you_mean(rest[0], known)} "
                f"(see {where} --help)"
            )
        name, rest = f"{name} {rest[0]}".strip(), rest[1:]
    return name, rest
