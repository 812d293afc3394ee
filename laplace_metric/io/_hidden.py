"""The hidden folder that a writer works in, and what a killed one left behind.

It also lists the files that its writer makes and replaces, so that the next one can remove them,
and nothing else.

Which JSON of a folder counts: its own, or the one that a killed writer had committed.

A batch of values has a token of 16 random digits. Each value lies ready in a hidden folder that is
named after the token, such as ``.posterior.0123456789abcdef.tmp/posterior.json``. Writing the
token to ``.together`` in the folder that holds them all is the one step that commits the batch;
then each JSON moves to its place. A reader looks for the committed JSON and moves nothing. Writers
move what a killed one left, each within the folder that it writes to and under its lock. The note
names no path: what another user writes there leads nowhere.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from laplace_metric._utils.names import utf8
from laplace_metric.errors import InputError
from laplace_metric.io._disk import (
    FileKind,
    is_folder,
    locked,
    named_errors,
    only_regular,
    readable,
    replace_file,
    sync_file,
)

JOURNAL = "names"


@contextmanager
def hidden_folder(
    folder: Path, name: str, kind: FileKind | None = None, token: str | None = None
) -> Iterator[Path]:
    """A folder in ``folder`` to write to, for one writer of ``name`` at a time.

    Those that killed writers left behind are removed, with the files that they list and that the
    JSON does not name. ``token``: of the batch, see ``_current``.
    """
    with locked(folder / f".{name}.lock") as alone:
        if kind is not None:
            finish(folder / kind.index)
        if alone:
            for left in left_behind(folder, name):
                _clean(folder, left, kind)
        hidden = folder / f".{name}.{token or secrets.token_hex(8)}.tmp"
        hidden.mkdir()
        try:
            yield hidden
        finally:
            _clean(folder, hidden, kind)


def _clean(folder: Path, hidden: Path, kind: FileKind | None) -> None:
    """Remove a hidden folder, and before it what its journal lists and the JSON does not name."""
    try:
        listed = json.loads(_bytes(hidden / JOURNAL))
    except (OSError, ValueError, RecursionError):
        listed = []
    if kind is not None and isinstance(listed, list):
        finish(folder / kind.index)  # a batch that was committed stays so, whatever failed since
        current = named_files(folder, kind)
        for name in listed:
            if isinstance(name, str) and kind.owns(name) and name not in current:
                try:
                    (folder / name).unlink(missing_ok=True)
                except OSError:  # a reader has it open (Windows): the next writer tries again
                    return
    with suppress(OSError):
        remove_hidden(hidden)


def named_files(folder: Path, kind: FileKind) -> set[str]:
    """The file that the JSON of a folder names, if it has one that can be read."""
    try:
        name = json.loads(_bytes(folder / kind.index)).get("tensors")
    except (OSError, ValueError, RecursionError, AttributeError):
        return set()
    return {name} if isinstance(name, str) and kind.owns(name) else set()


def _bytes(path: Path) -> bytes:
    with open(path, "rb", opener=only_regular) as file:
        return file.read()


def left_behind(folder: Path, name: str) -> list[Path]:
    """Hidden folders of writers of ``name``, alive or killed, and links called like one."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def remove_hidden(hidden: Path) -> None:
    """Remove the hidden folder of a writer that is gone; of a file or a link, itself only."""
    if not is_folder(hidden):
        return hidden.unlink(missing_ok=True)
    for path in hidden.iterdir():
        path.unlink(missing_ok=True)
    hidden.rmdir()


def tidy(folder: Path, kind: FileKind) -> None:
    """Remove what killed writers left in ``folder``; its value stays.

    Raises
    ------
    WriteError
        If the folder cannot be written to.
    """
    if (folder / f".{kind.name}.lock").exists() or left_behind(folder, kind.name):
        with named_errors(folder), hidden_folder(folder, kind.name, kind):
            pass


NOTE = ".together"


def current(path: Path) -> Path:
    """Return where the JSON that counts lies: ``path``, or that of a committed batch."""
    folder = path.absolute().parent
    for root in (folder, folder.parent):
        token = noted(root)
        if token is not None:
            hidden = path.parent / f".{path.stem}.{token}.tmp"
            ready = hidden / path.name
            if is_folder(hidden) and ready.is_file() and not ready.is_symlink():
                return ready
    return path


def exists(path: Path) -> bool:
    """Return whether there is a JSON that counts."""
    return current(path).exists() or path.exists()  # it may have moved in between


def current_bytes(path: Path, most: int) -> bytes:
    """Read the JSON that counts.

    Raises
    ------
    FileNotFoundError
        If there is none.
    OSError
        If it is larger than ``most`` bytes, or not a regular file.
    """
    for place in (current(path), path):  # it may have moved in between
        with suppress(FileNotFoundError), open(place, "rb", opener=only_regular) as file:
            content = file.read(most + 1)
            if len(content) > most:
                raise OSError(0, f"it has more than {most:,} bytes")
            return content
    raise FileNotFoundError(path)


def noted(root: Path) -> str | None:
    """Return the token of the batch that was committed last and not finished."""
    note = root / NOTE
    if note.is_symlink():
        return None
    try:
        with open(note, "rb", opener=only_regular) as file:
            token = file.read(17).decode()
    except (OSError, ValueError):
        return None
    return token if re.fullmatch(r"[0-9a-f]{16}", token) else None


def finish(path: Path) -> None:
    """Move a committed JSON to its place."""
    ready = current(path)
    if ready != path:
        with suppress(FileNotFoundError):  # another writer did
            replace_file(ready, path)


def finish_all(root: Path) -> None:
    """Finish the batch that was noted in ``root``."""
    if (token := noted(root)) is not None:
        for pattern in (f".*.{token}.tmp", f"*/.*.{token}.tmp"):
            for hidden in root.glob(pattern):
                folder, name = hidden.parent, hidden.name.split(".")[1]
                if folder == root or is_folder(folder):
                    finish(folder / f"{name}.json")
    (root / NOTE).unlink(missing_ok=True)


# One file that is whole or not there.


LONGEST_NAME = 255 - len("..0123456789abcdef.tmp")
"""Bytes of a file name: the hidden folder that the file is written in has a longer one."""


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there.

    A text is written as UTF-8 (``laplace_metric._utils.archives.utf8``). ``mode``: its permissions,
    less what the umask takes.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with writing(path, mode) as temporary:
        temporary.write_bytes(utf8(content) if isinstance(content, str) else content)


@contextmanager
def writing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A file to write to, which becomes ``path`` at the end, unless there was an error.

    ``mode``: its permissions, less what the umask takes.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old file is kept.
    """
    with named_errors(path), hidden_folder(path.parent, path.name) as hidden:
        temporary = hidden / "content"
        with readable(temporary, mode):
            yield temporary
        sync_file(temporary)
        replace_file(temporary, path)


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")
    if (length := len(os.fsencode(path.name))) > LONGEST_NAME:
        raise InputError(
            f"{path.name:.40}... has a name of {length} bytes: give one of at most {LONGEST_NAME}."
        )


def json_text(content: Any, *, ascii_only: bool = False) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=ascii_only) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
