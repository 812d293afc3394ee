"""Paths that a command writes to, checked before the work, and its working folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from laplace_metric.errors import InputError
from laplace_metric.io import require_writable


def require_outputs(paths: Sequence[Path]) -> None:
    """Check that different files are named, and that each can be written.

    Raises
    ------
    InputError
        If not.
    """
    repeated = [path for path in paths if paths.count(path) > 1]
    if repeated:
        raise InputError(f"two results would go to {repeated[0]}. Give different names.")
    for path in paths:
        require_writable(path)


def working_folder(output: Path) -> Path:
    """Return the folder next to an output that holds what was finished of it so far.

    Examples
    --------
    >>> working_folder(Path("runs/p.safetensors")).name
    '.p.safetensors.checkpoint'
    """
    return output.with_name(f".{output.name}.checkpoint")


def discard(folder: Path) -> None:
    """Remove a working folder, if it exists; killed meanwhile, the next call removes the rest.

    It loses its name first: no later run takes a part of it for the whole.
    """
    gone = folder.with_name(f"{folder.name}.gone")
    _remove(gone)
    with suppress(FileNotFoundError):
        os.replace(folder, gone)
    _remove(gone)


def _remove(path: Path) -> None:
    """Remove a folder and what is in it; of a link, itself only."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
