"""Several values that change together or not at all, even if the process is killed.

Each lies ready in a hidden folder; a note commits them all, see ``_current``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from laplace_metric._utils.files._current import NOTE, finish_all
from laplace_metric._utils.files._disk import (
    named_errors,
    refuse_link,
    replace_file,
    sync_folder,
    write_synced,
)
from laplace_metric._utils.files._hidden import JOURNAL, hidden_folder, named_files
from laplace_metric._utils.files._kinds import FileKind
from laplace_metric._utils.files._locks import locked


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


@dataclass
class Batch:
    """What the end of a ``together`` makes current, and the hidden folders that it holds open."""

    stack: ExitStack
    root: Path | None
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    pending: list[Pending] = field(default_factory=list)

    def hidden(self, folder: Path, kind: FileKind) -> Path:
        """Make a folder to write a value of ``folder`` to."""
        if self.root not in (None, folder):
            refuse_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return self.stack.enter_context(hidden_folder(folder, kind.name, kind, self.token))

    def commit(self) -> None:
        """Make the pending values current, with a root in one step."""
        for pending in self.pending:
            pending.prepare()
        if self.root is not None:
            _note(self.root, self.token)
        for pending in self.pending:
            name = pending.kind.index
            replace_file(pending.hidden / name, pending.folder / name)
        for pending in self.pending:
            sync_folder(pending.folder)
        if self.root is not None:
            (self.root / NOTE).unlink()


def _note(root: Path, token: str) -> None:
    try:
        write_synced(root / NOTE, token)
    except OSError:
        (root / NOTE).unlink(missing_ok=True)
        raise


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextmanager
def together(root: Path | None = None) -> Iterator[Batch]:
    """Commit what is written within at the end: all of it, or nothing after an error.

    With ``root``, a folder that holds all of it, itself or right below, this is so even if the
    process is killed.

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
                stack.enter_context(locked(root / f"{NOTE}.lock"))
                finish_all(root)
        batch = Batch(stack, root)
        token = _BATCH.set(batch)
        try:
            yield batch
        finally:
            _BATCH.reset(token)
        with named_errors(*(p.folder for p in batch.pending)):
            batch.commit()
