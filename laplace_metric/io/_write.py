"""Write a value: its tensors under names that hold their hashes, then the JSON that names them.

Several values that change together or not at all, even if the process is killed.

Each lies ready in a hidden folder; a note commits them all, see ``_current``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laplace_metric.io._disk import (
    POSTERIOR,
    FileKind,
    head_of,
    locked,
    named_errors,
    readable,
    refuse_link,
    replace_file,
    sealed,
    sha256_of,
    sync_file,
    sync_folder,
    write_synced,
)
from laplace_metric.io._hidden import JOURNAL, NOTE, finish_all, hidden_folder, named_files

if TYPE_CHECKING:
    from torch import Tensor


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old value is kept.
    """
    from safetensors.torch import save_file

    with together() as batch:
        with named_errors(folder):
            hidden = batch.hidden(folder, kind)
            plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            path = hidden / "tensors"
            with readable(path):
                save_file(plain, path)
            sha256 = sha256_of(path)
            name = f"{kind.name}-{sha256[:16]}.safetensors"
            sync_file(path)
            os.rename(path, hidden / name)
            header = {"format": kind.format, "version": kind.version}
            header |= {"tensors": name, "sha256": sha256, "heads": {name: head_of(hidden / name)}}
            write_synced(hidden / kind.index, json.dumps(sealed({**header, **content}), indent=2))
        batch.pending.append(Pending(folder, kind, hidden, name))


@dataclass
class Pending:
    """A JSON and its tensors in a hidden folder that will become the value of ``folder``."""

    folder: Path
    kind: FileKind
    hidden: Path
    tensors: str

    def prepare(self) -> None:
        """Put the tensors next to those of the old value, which is still the current one."""
        journal = {self.tensors, *named_files(self.folder, self.kind)}
        write_synced(self.hidden / JOURNAL, json.dumps(sorted(journal)))
        replace_file(self.hidden / self.tensors, self.folder / self.tensors)


@dataclass
class Batch:
    """Values that become current at the end of a ``together``, and its hidden folders."""

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
