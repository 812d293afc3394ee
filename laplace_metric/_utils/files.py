"""Files that are whole or not there, and the hashes that tell one content from another.

A saved value is a folder with a JSON, such as ``posterior.json``, and the safetensors that it
names. The tensors are written first, under a name that holds their hash; replacing the JSON is the
one atomic step that makes them current. A reader sees the old value or the new one, never a mix.
A value may have one more file of a foreign format (that of a search engine).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError


@dataclass(frozen=True)
class FileKind:
    """What a folder holds: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> FileKind("checkpoint", "a training checkpoint", 1).index
    'checkpoint.json'
    """

    name: str
    title: str
    version: int

    @property
    def format(self) -> str:
        """What the JSON calls it."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"


POSTERIOR = FileKind("posterior", "a saved posterior", 2)
INDEX = POSTERIOR.index


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
    foreign: Callable[[Path], None] | None = None,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    ``foreign`` writes the file of a foreign format to the path that it is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    written = [_hashed(folder, kind, "safetensors", lambda path: save_file(plain, path))]
    header = {"format": kind.format, "version": kind.version}
    header |= {"tensors": written[0][0], "sha256": written[0][1]}
    if foreign is not None:
        written.append(_hashed(folder, kind, "foreign", foreign))
        header |= {"foreign": written[1][0], "foreign_sha256": written[1][1]}
    write_atomically(folder / kind.index, json.dumps({**header, **content}, indent=2))
    for old in folder.glob(f"{kind.name}-*"):
        if old.name not in [name for name, _ in written]:
            old.unlink(missing_ok=True)


def read(
    folder: Path, kind: FileKind = POSTERIOR, *, mapped: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON content and the tensors of what ``write`` wrote.

    ``mapped`` leaves the tensors on disk until they are used, and does not hash them.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    content = read_index(folder, kind)
    path = _checked(folder, kind, content, "tensors", "sha256", hashed=not mapped)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def foreign_file(
    folder: Path, content: dict[str, Any], kind: FileKind, *, hashed: bool = True
) -> Path:
    """Where the file of a foreign format lies, checked as ``read`` checks the tensors."""
    return _checked(folder, kind, content, "foreign", "foreign_sha256", hashed=hashed)


def _checked(
    folder: Path, kind: FileKind, content: dict[str, Any], key: str, sha_key: str, *, hashed: bool
) -> Path:
    name = str(content.get(key))
    if Path(name).name != name:
        raise FileFormatError(
            f"{folder / kind.index} is damaged: {key}={name!r} is not a file name."
        )
    path = folder / name
    try:
        path.stat()
        damaged = hashed and _sha256(path) != content.get(sha_key)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    if damaged:
        raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
    return path


def read_index(folder: Path, kind: FileKind) -> dict[str, Any]:
    """The JSON of what ``write`` wrote.

    Raises
    ------
    FileFormatError
        If there is none, or one that is damaged, foreign or newer.
    """
    path = folder / kind.index
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise FileFormatError(
            f"{folder} holds no {kind.index}, so it is not {kind.title}."
        ) from error
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise FileFormatError(f"{path} was not written by laplace_metric.")
    if content.get("version") != kind.version:
        raise FileFormatError(
            f"{path} has version {content.get('version')!r}, this package reads {kind.version}: "
            "upgrade laplace-metric, or fit again."
        )
    return content


def _hashed(
    folder: Path, kind: FileKind, ending: str, write_to: Callable[[Path], None]
) -> tuple[str, str]:
    """Write a file whose name holds its hash; the name and the hash."""
    with _temporary(folder, kind.name) as temporary:
        mode = temporary.stat().st_mode
        write_to(temporary)
        temporary.chmod(mode)  # safetensors makes files that only their owner may read
        sha256 = _sha256(temporary)
        name = f"{kind.name}-{sha256[:16]}.{ending}"
        _move(temporary, folder / name)
    return name, sha256


def _sha256(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def digest(text: str, tensors: Iterable[Tensor] = ()) -> str:
    """sha256 of a text, then of tensors (any shapes) in order, with their shapes and dtypes.

    Names of the tensors, where they matter, belong into the text.

    Examples
    --------
    >>> digest("a", [torch.zeros(2)]) == digest("a", [torch.zeros(2, 1)])
    False
    """
    sha256 = hashlib.sha256(text.encode())
    for tensor in tensors:
        sha256.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha256.update(content.numpy().data)
    return sha256.hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there."""
    with _temporary(path.parent, path.name) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        _move(temporary, path)


def _move(temporary: Path, path: Path) -> None:
    """Give a file its name once its content is on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    """An empty file in ``folder`` to write to; it is removed if it was not renamed."""
    temporary = folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666))  # readable as the umask says
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise ``InputError`` if ``path`` cannot be written, before any work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist. Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} may not be written to.")


def json_text(content: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
