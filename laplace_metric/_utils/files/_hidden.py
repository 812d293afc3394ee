"""The hidden folder that a writer works in, and what a killed one left behind.

It also lists the files that its writer makes and replaces, so that the next one can remove them,
and nothing else.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laplace_metric._utils.files._current import finish
from laplace_metric._utils.files._disk import is_folder, named_errors, only_regular
from laplace_metric._utils.files._kinds import FileKind
from laplace_metric._utils.files._locks import locked

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
    """The files that the JSON of a folder names, if it has one that can be read."""
    try:
        content = json.loads(_bytes(folder / kind.index))
        names = {content.get("tensors"), content.get("foreign")}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str) and kind.owns(name)}


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
