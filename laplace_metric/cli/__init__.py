"""The command line; the module of a command, and torch with it, is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from laplace_metric.cli._options import MISUSE, parser

INTERRUPTED = 130
NOT_WRITTEN = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0.

    It is 1 if a result cannot be written, 2 for a user's mistake, 130 for Ctrl-C.
    """
    options = parser().parse_args(arguments)
    try:
        module, name = options.function.split(":")
        getattr(import_module(module), name)(options)
    except KeyboardInterrupt:
        print("laplace-metric: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not _is_mistake(error):
            raise
        print(f"laplace-metric: error: {error}", file=sys.stderr)
        return _code(error)
    return 0


def _code(error: Exception) -> int:
    from laplace_metric.errors import WriteError

    return NOT_WRITTEN if isinstance(error, WriteError) else MISUSE


def _is_mistake(error: Exception) -> bool:
    """Whether the user can mend it; any other error is a bug, and keeps its traceback."""
    from laplace_metric.errors import LaplaceMetricError

    return isinstance(error, (LaplaceMetricError, OSError))
