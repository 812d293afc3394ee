"""The command line; the module of a command, and torch with it, is imported when it runs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from importlib import import_module
from io import TextIOWrapper
from typing import Any, TextIO

from laplace_metric._utils import __version__
from laplace_metric._utils.names import one_line
from laplace_metric.cli._options import COMMANDS, commands_in, in_options, parser_of
from laplace_metric.cli._words import HELP, PROGRAM, did_you_mean
from laplace_metric.errors import InputError, LaplaceMetricError, WriteError

NOT_WRITTEN, MISUSE, INTERRUPTED = 1, 2, 130
SPEAKING = ("demo",)
"""Commands that print by themselves."""
RESUMED = ("fit", "image-text fit")
"""Commands that go on where they were interrupted."""
NO_MEMORY = "out of memory: give a smaller --batch-size, or a smaller --size of images"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0.

    It is 1 if a result cannot be written, 2 for a user's mistake, 130 for Ctrl-C. Any other
    exception is a bug, and raised.
    """
    try:
        with any_character():
            return _run(sys.argv[1:] if arguments is None else list(arguments))
    except (LaplaceMetricError, OSError, MemoryError) as error:
        what = str(error) or f"{NO_MEMORY}."
        close_bars()
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
    quiet = getattr(options, "quiet", False)

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if not quiet:
            tell(f"note: {one_line(in_options(str(message)))}")

    try:
        with (
            warnings.catch_warnings(),
            nullcontext() if name in SPEAKING else others_to_stderr(),
        ):
            warnings.showwarning = note
            module, called = function.split(":")
            getattr(import_module(f"laplace_metric.{module}"), called)(options)
    except KeyboardInterrupt:
        if not (close_bars() or quiet):
            print(file=sys.stderr)  # behind what a terminal writes for Ctrl-C
        how = ". The same command goes on from where it was" if name in RESUMED else ""
        print(f"{PROGRAM}: interrupted{how}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _named(words: list[str]) -> tuple[str, list[str]]:
    """Return the command, or the group of commands, that words name, and the words that follow."""
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


# Progress bars are on standard error, too: what is told there begins on a line of its own.


def tell(line: str) -> None:
    """Print a line to standard error; open progress bars go on below it."""
    bars = sys.modules.get("tqdm")  # slow to import, and without it no bar is open
    if bars is None:
        print(line, file=sys.stderr)
    else:
        bars.tqdm.write(line, file=sys.stderr)


def close_bars() -> bool:
    """End the lines of progress bars that an exception left open; return True if there were any."""
    bars = sys.modules.get("tqdm")
    left = list(getattr(bars and bars.tqdm, "_instances", ()))
    for bar in left:
        bar.close()
    return bool(left)


# Standard output is ours alone: what a model prints goes to standard error.

_OURS: ContextVar[TextIO | None] = ContextVar("ours", default=None)


def ours() -> TextIO:
    """Return the stream for results."""
    return _OURS.get() or sys.stdout


@contextmanager
def others_to_stderr() -> Iterator[None]:
    """Send prints of other code to standard error within, also of its C code and children.

    Standard output gets a file number of our own; its old number is standard error within.

    Examples
    --------
    >>> with others_to_stderr():
    ...     print("chatter of a model")
    ...     print("a result", file=ours())
    a result
    """
    sys.stdout.flush()
    try:
        real = sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
    except (OSError, ValueError):  # captured, or closed: there is nothing that C could print to
        real = False
    with ExitStack() as stack:
        output = sys.stdout
        if real:
            output = stack.enter_context(
                os.fdopen(os.dup(1), "w", encoding=output.encoding, errors=output.errors)
            )
            stack.callback(os.dup2, output.fileno(), 1)
            os.dup2(2, 1)
        stack.callback(output.flush)
        stack.callback(_OURS.reset, _OURS.set(output))
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def any_character() -> Iterator[None]:
    """Write characters that the encoding of standard output lacks as backslash escapes within."""
    stream = sys.stdout
    if not isinstance(stream, TextIOWrapper):
        yield
        return
    errors = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=errors)
