"""Which JSON of a folder counts: its own, or the one that a killed writer had committed.

A batch of values has a token of 16 random digits. Each value lies ready in a hidden folder that is
named after the token, such as ``.posterior.0123456789abcdef.tmp/posterior.json``. Writing the
token to ``.together`` in the folder that holds them all is the one step that commits the batch;
then each JSON moves to its place. A reader looks for the committed JSON and moves nothing. Writers
move what a killed one left, each within the folder that it writes to and under its lock. The note
names no path: what a stranger writes there leads nowhere.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from laplace_metric._utils.files._disk import is_folder, only_regular, replace_file

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
    """Whether there is a JSON that counts."""
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
