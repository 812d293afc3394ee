"""What a command says and leaves behind: notes, results, files that are not overwritten."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from laplace_metric._utils.files import require_writable, to_json, write_atomically
from laplace_metric.cli.sources import Batches
from laplace_metric.errors import InputError

STDOUT = "-"


@dataclass(frozen=True)
class Reporter:
    """Where a command speaks: results on stdout, notes on stderr, numbers where ``json`` says.

    Parameters
    ----------
    quiet : bool
        Nothing but errors, and JSON if it was asked for.
    json : str or None
        A file, or ``-`` for stdout, which then holds nothing else.
    """

    quiet: bool = False
    json: str | None = None

    @property
    def progress(self) -> bool:
        """Whether to show bars."""
        return not self.quiet

    def watch(self, description: str, loader: Batches) -> Iterable[Any]:
        """The same batches with a bar."""
        return tqdm(loader, desc=description, disable=self.quiet)

    def note(self, text: str) -> None:
        """A guess or a warning."""
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A result."""
        if not self.quiet and self.json != STDOUT:
            print(text)

    def show(self, table: Table) -> None:
        """A result as a table."""
        if not self.quiet and self.json != STDOUT:
            Console().print(table)

    def numbers(self, content: dict[str, Any]) -> None:
        """The result for machines."""
        if self.json == STDOUT:
            sys.stdout.write(to_json(content))
        elif self.json is not None:
            write_atomically(Path(self.json), to_json(content))

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Warnings become notes."""
        with warnings_as_notes(Console(stderr=True, quiet=self.quiet)):
            yield


@contextmanager
def warnings_as_notes(console: Console) -> Iterator[None]:
    """Show each distinct warning as one line, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(
            f"note: {text}", style="yellow", soft_wrap=True, highlight=False, markup=False
        )


def reporter_of(options: Any, *files: Path | None) -> Reporter:
    """The voice that options ask for; ``files`` and the JSON are checked before the work.

    Raises
    ------
    InputError
        If a file exists and --overwrite was not given, or it cannot be written.
    """
    numbers = None if options.json in (None, STDOUT) else Path(options.json)
    wanted = [path for path in (*files, numbers) if path is not None]
    if len(set(wanted)) < len(wanted):
        raise InputError(f"two results would go to {wanted[-1]}. Give different names.")
    for path in wanted:
        require_writable(path)
        require_new(path, overwrite=options.overwrite)
    return Reporter(options.quiet, options.json)


def require_new(path: Path, *, overwrite: bool, named: Path | None = None) -> None:
    """Raise ``InputError`` if ``path`` exists, which stands for ``named``."""
    if path.exists() and not overwrite:
        raise InputError(f"{named or path} exists: give --overwrite, or another --output.")


def require_folder(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is no folder and none can be made there."""
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not place.is_dir():
        raise InputError(f"--output {path}: {place} is not a folder.")
    if not os.access(place, os.W_OK):
        raise InputError(f"--output {path}: the folder {place} may not be written to.")
