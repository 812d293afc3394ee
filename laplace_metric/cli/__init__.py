"""The command line; the module of a command, and torch with it, is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

from laplace_metric._utils.names import one_line
from laplace_metric.cli._options import parser
from laplace_metric.cli._parser import MISUSE, Parser, in_options
from laplace_metric.cli._streams import any_character, others_to_stderr

INTERRUPTED = 130
NOT_WRITTEN = 1
SPEAKING = ("serve", "demo", "completion")
"""Functions of commands that print by themselves."""
NO_MEMORY = "out of memory: give a smaller --batch-size, or a smaller --size of images"
RESUMED = ("fit", "embed")
"""Functions of commands that go on where they were interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0.

    It is 1 if a result cannot be written, 2 for a user's mistake, 130 for Ctrl-C.
    """
    try:
        with any_character():
            return _run(sys.argv[1:] if arguments is None else list(arguments))
    except Exception as error:
        if not _is_mistake(error):
            raise
        what = str(error) or f"{NO_MEMORY}."
        print(f"laplace-metric: error: {one_line(in_options(what))}", file=sys.stderr)
        return _code(error)


def _run(arguments: list[str]) -> int:
    top = parser()
    options = top.parse_args(arguments)
    if not hasattr(options, "function"):  # no command: the help of what was named so far
        _named(top, arguments).print_help()
        return 0
    module, name = options.function.split(":")
    try:
        with nullcontext() if name in SPEAKING else others_to_stderr():
            getattr(import_module(module), name)(options)
    except KeyboardInterrupt:
        if not getattr(options, "quiet", False):
            print(file=sys.stderr)  # behind a bar
        how = ". The same command goes on from where it was" if name in RESUMED else ""
        print(f"laplace-metric: interrupted{how}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _named(top: Parser, arguments: Sequence[str]) -> Parser:
    """The parser of the last command that is named."""
    for word in arguments:
        top = top.commands().get(word, top)
    return top


def _code(error: Exception) -> int:
    from laplace_metric.errors import WriteError

    return NOT_WRITTEN if isinstance(error, WriteError) else MISUSE


def _is_mistake(error: Exception) -> bool:
    """Return whether the user can fix the error; any other one is a bug with a traceback."""
    from laplace_metric.errors import LaplaceMetricError

    return isinstance(error, (LaplaceMetricError, OSError, MemoryError))
