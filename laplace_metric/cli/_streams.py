"""Our standard output is only ours: what a model prints goes to standard error.

Apart from ``_output``, so that ``--help`` imports neither torch nor rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from io import TextIOWrapper
from typing import TextIO

_OURS: ContextVar[TextIO | None] = ContextVar("ours", default=None)


def ours() -> TextIO:
    """Return the stream for results."""
    return _OURS.get() or sys.stdout


@contextmanager
def others_to_stderr() -> Iterator[None]:
    """Prints of other code go to standard error within, those of its C code and children too.

    Examples
    --------
    >>> with others_to_stderr():
    ...     print("chatter of a model")
    ...     print("a result", file=ours())
    a result
    """
    with _own_output() as output:
        token = _OURS.set(output)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _OURS.reset(token)
            output.flush()


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


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Standard output under a file number of our own; its old number is standard error within."""
    sys.stdout.flush()
    try:
        real = sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
    except (OSError, ValueError):  # captured, or closed: there is nothing that C could print to
        real = False
    if not real:
        yield sys.stdout
        return
    with os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors) as own:
        os.dup2(2, 1)
        try:
            yield own
        finally:
            os.dup2(own.fileno(), 1)
