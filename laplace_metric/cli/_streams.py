"""Our standard output is only ours: what a model prints goes to standard error.

Apart from ``_output``, so that ``--help`` imports neither torch nor rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TextIO

_OURS: ContextVar[TextIO | None] = ContextVar("ours", default=None)


def ours() -> TextIO:
    """Return the stream for results."""
    return _OURS.get() or sys.stdout


@contextmanager
def others_to_stderr() -> Iterator[None]:
    """Prints of other code go to standard error within, those of its C code and children too.

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
