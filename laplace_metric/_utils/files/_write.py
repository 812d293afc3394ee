"""Write a value: its tensors under names that hold their hashes, then the JSON that names them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from laplace_metric._utils.files._disk import named_errors, readable, sync_file, write_synced
from laplace_metric._utils.files._hashes import head_of, sealed, sha256_of
from laplace_metric._utils.files._kinds import POSTERIOR, FileKind
from laplace_metric._utils.files._together import Pending, together


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
    foreign: Callable[[Path], None] | None = None,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    ``foreign`` writes the file of a foreign format to the path that it is given.

    Raises
    ------
    WriteError
        If it cannot be written, such as on a full disk; the old value is kept.
    """
    with together() as batch:
        with named_errors(folder):
            hidden = batch.hidden(folder, kind)
            plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            written = [_hashed(hidden, kind, "safetensors", lambda path: save_file(plain, path))]
            header = {"format": kind.format, "version": kind.version}
            header |= {"tensors": written[0][0], "sha256": written[0][1]}
            if foreign is not None:
                written.append(_hashed(hidden, kind, "foreign", foreign))
                header |= {"foreign": written[1][0], "foreign_sha256": written[1][1]}
            header["heads"] = {name: head_of(hidden / name) for name, _ in written}
            text = json.dumps(sealed({**header, **content}), indent=2)
            write_synced(hidden / kind.index, text)
        batch.pending.append(Pending(folder, kind, hidden, [name for name, _ in written]))


def _hashed(
    hidden: Path, kind: FileKind, ending: str, write_to: Callable[[Path], None]
) -> tuple[str, str]:
    """Write a file whose name holds its hash; the name and the hash."""
    path = hidden / ending
    with readable(path):
        write_to(path)
    sha256 = sha256_of(path)
    name = f"{kind.name}-{sha256[:16]}.{ending}"
    sync_file(path)
    os.rename(path, hidden / name)
    return name, sha256
