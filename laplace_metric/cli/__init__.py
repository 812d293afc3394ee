"""The command line. Heavy imports wait until a command needs them.

``options`` says what a command takes and what carries it out, which is loaded after that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from laplace_metric.cli._options import MISUSE, parser

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a user's mistake, 130 for Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        module, name = options.does.split(":")
        getattr(import_module(module), name)(options)
    except KeyboardInterrupt:
        print("laplace-metric: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not _is_users(error):
            raise
        print(f"laplace-metric: error: {error}", file=sys.stderr)
        return MISUSE
    return 0


def _is_users(error: Exception) -> bool:
    from laplace_metric.errors import LaplaceMetricError

    return isinstance(error, (LaplaceMetricError, OSError))
