"""The library that made a record, from its commit, beside the benchmarks as they are now."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.definitions import OWN
from benchmarks.imports import LIBRARY, ROOT


def extracted(record: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the folder of an earlier library with the present benchmarks; None if it is unknown.

    The definitions of a record that can be confirmed are the present ones, so that its library is
    all that differs. It is unknown where it was changed after its commit, and where this copy of
    the repository lacks the commit.

    Parameters
    ----------
    record : dict
        Record that was made by the library.
    folder : Path
        Empty folder.
    """
    facts = record["environment"]
    commit = facts.get("git")
    if not commit or not facts.get("git_clean"):
        return None
    packed = subprocess.run(
        ["git", "archive", commit, LIBRARY], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    for name in OWN:
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    return folder
