"""Reporter of a command: results to stdout, notes to stderr, numbers as JSON."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from laplace_metric._utils.names import one_line
from laplace_metric.cli import ours, tell
from laplace_metric.cli._options import in_options
from laplace_metric.cli._output_paths import require_outputs
from laplace_metric.errors import InputError
from laplace_metric.io import json_text, write_atomically

STDOUT = Path("-")


@dataclass(frozen=True)
class Reporter:
    """Results to stdout, notes to stderr, numbers to where ``json`` says.

    Parameters
    ----------
    quiet : bool
        Print nothing but errors, and JSON if it was asked for.
    json : Path or None
        File for the numbers, or ``-`` for stdout, which then holds nothing else.
    """

    quiet: bool = False
    json: Path | None = None

    @property
    def progress(self) -> bool:
        """True if bars are shown."""
        return not self.quiet

    def note(self, text: str) -> None:
        """Print a guess or a warning."""
        if not self.quiet:
            tell(f"note: {one_line(text)}")

    def say(self, text: str) -> None:
        """Print a result."""
        if not self.quiet and self.json != STDOUT:
            print(text, file=ours())

    @property
    def width(self) -> int:
        """Characters of a line of standard output."""
        return Console(file=ours()).width

    def show(self, table: RenderableType) -> None:
        """Print a result as a table."""
        if not self.quiet and self.json != STDOUT:
            Console(file=ours()).print(table)

    def numbers(self, content: dict[str, Any]) -> None:
        """Write the result as JSON, to standard output or to the file of --json."""
        if self.json == STDOUT:
            unicode = (ours().encoding or "utf-8").lower().startswith("utf")
            ours().write(json_text(content, ascii_only=not unicode))
        elif self.json is not None:
            write_atomically(self.json, json_text(content))

    @contextmanager
    def warnings(self, refused: type[Warning] | None = None) -> Iterator[None]:
        """Turn warnings into notes, each distinct one at the end; raise those ``refused``."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if refused is not None:
                warnings.simplefilter("error", refused)
            try:
                yield
            finally:  # they may say why an error came
                for text in dict.fromkeys(in_options(str(each.message)) for each in caught):
                    self.note(text)


def reporter_of(options: Any, *files: Path | None) -> Reporter:
    """Return the reporter of a command, whose ``files`` and JSON are checked before the work.

    Raises
    ------
    InputError
        If a file exists and --overwrite was not given, or it cannot be written.
    """
    paths = [path for path in (*files, options.json) if path not in (None, STDOUT)]
    require_outputs(paths)
    for path in paths:
        if path.exists() and not options.overwrite:
            raise InputError(f"{path} exists: give --overwrite, or another --output.")
    return Reporter(options.quiet, options.json)
