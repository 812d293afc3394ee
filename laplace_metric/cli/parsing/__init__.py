"""What stands on the command line, or in the file of ``--config``."""

from laplace_metric.cli.parsing._config import RUN, read_config, run_text
from laplace_metric.cli.parsing._parser import (
    CONFIG,
    MISUSE,
    MOST_SIDE,
    Parser,
    integer,
    positive,
    share,
)
from laplace_metric.cli.parsing._words import in_options

__all__ = [
    "CONFIG", "MISUSE", "MOST_SIDE", "RUN", "Parser", "in_options", "integer", "positive",
    "read_config", "run_text", "share",
]  # fmt: skip
