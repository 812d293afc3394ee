"""Several values that change together or not at all, even if the process is killed.

Each lies ready in a hidden folder; renaming its JSON makes it the current one. The renames are
noted before the first, and whoever comes next carries out what a killed writer noted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from laplace_metric._utils.files._disk import named_errors, replace_file, sync_folder, write_synced
from laplace_metric._utils.files._hidden import JOURNAL, named_files
from laplace_metric._utils.files._kinds import FileKind
from laplace_metric._utils.files._locks import locked
from laplace_metric.errors import FileFormatError

RENAMES = ".renames.json"
TURN = ".renames.lock"
_RENAME = re.compile(r"([A-Za-z]+/)?\.([a-z]+)\.[0-9a-f]{16}\.tmp/\2\.json")


@dataclass
class Pending:
    """What lies ready in a hidden folder, to become the value of ``folder``."""

    folder: Path
    kind: FileKind
    hidden: Path
    names: list[str]

    def prepare(self) -> None:
        """Put the files beside those of the old value, which is still the current one."""
        journal = {*self.names, *named_files(self.folder, self.kind)}
        write_synced(self.hidden / JOURNAL, json.dumps(sorted(journal)))
        for name in self.names:
            replace_file(self.hidden / name, self.folder / name)

    def rename(self, root: Path) -> str:
        """What ``commit`` does, for the note in ``root``."""
        return (self.hidden / self.kind.index).relative_to(root).as_posix()

    def commit(self) -> None:
        """Make it the value of the folder."""
        replace_file(self.hidden / self.kind.index, self.folder / self.kind.index)


@dataclass
class Batch:
    """What the end of a ``together`` makes current, and the hidden folders that it holds open."""

    stack: ExitStack
    pending: list[Pending] = field(default_factory=list)


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextmanager
def together(root: Path | None = None) -> Iterator[Batch]:
    """What is written within takes effect at the end, all of it, or none after an error.

    With ``root``, a folder that holds all of it, this is so even if the process is killed: the
    renames are noted there first, and ``finish_renames`` or the next writer carries them out.

    Raises
    ------
    WriteError
        If something cannot be written; the old values are kept.
    """
    if (outer := _BATCH.get()) is not None:
        yield outer
        return
    with ExitStack() as stack:
        if root is not None:
            with named_errors(root):
                root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(root / TURN))
                _finish(root)
        batch = Batch(stack)
        token = _BATCH.set(batch)
        try:
            yield batch
        finally:
            _BATCH.reset(token)
        with named_errors(*(p.folder for p in batch.pending)):
            for pending in batch.pending:
                pending.prepare()
            if root is not None:
                _note(root, [pending.rename(root) for pending in batch.pending])
            for pending in batch.pending:
                pending.commit()
            for pending in batch.pending:
                sync_folder(pending.folder)
            if root is not None:
                (root / RENAMES).unlink()


def _note(root: Path, renames: list[str]) -> None:
    try:
        write_synced(root / RENAMES, json.dumps(renames))
    except OSError:
        (root / RENAMES).unlink(missing_ok=True)
        raise


def finish_renames(root: Path) -> None:
    """Carry out the renames that a killed writer noted in ``root``, if there are any.

    Raises
    ------
    FileFormatError
        If they are to be carried out, and the folder cannot be written to.
    """
    if not (root / RENAMES).exists():
        return
    try:
        with locked(root / TURN):
            _finish(root)
    except OSError as error:
        raise FileFormatError(
            f"{root} was being replaced when the process was killed, which cannot be finished: "
            f"{error}."
        ) from error


def _finish(root: Path) -> None:
    try:
        renames = json.loads((root / RENAMES).read_bytes())
    except FileNotFoundError:
        return
    except (ValueError, RecursionError):  # killed before it was noted: nothing was renamed
        renames = []
    for rename in renames if isinstance(renames, list) else []:
        if isinstance(rename, str) and _RENAME.fullmatch(rename) and (root / rename).is_file():
            source = root / rename
            replace_file(source, source.parent.parent / source.name)
    (root / RENAMES).unlink()
