"""A value on disk: a folder with a JSON, ``posterior.json``, and the safetensors that it names.

The tensors are written first, under a name that holds their hash; replacing the JSON is the one
atomic step that makes them current. A reader sees the old posterior or the new one, never a mix.
A value may have one more file, of a format that is not ours (an engine's own).

Writing results: whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from laplace_metric.errors import FileFormatError, InputError

VERSION = 2
INDEX = "posterior.json"


@dataclass(frozen=True)
class FileKind:
    """What a folder holds: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> FileKind("checkpoint", "a training checkpoint", 1).index
    'checkpoint.json'
    """

    name: str
    words: str
    version: int

    @property
    def format(self) -> str:
        """Told in the JSON."""
        return f"laplace_metric.{self.name}"

    @property
    def index(self) -> str:
        """File name of the JSON."""
        return f"{self.name}.json"


POSTERIOR = FileKind("posterior", "a saved posterior", VERSION)


def write(
    folder: Path,
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: FileKind = POSTERIOR,
    own: Callable[[Path], None] | None = None,
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``.

    ``own`` writes one more file to the path that it is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    written = [_hashed(folder, kind, "safetensors", lambda path: save_file(plain, path))]
    header = {"format": kind.format, "version": kind.version}
    header |= {"tensors": written[0][0], "sha256": written[0][1]}
    if own is not None:
        written.append(_hashed(folder, kind, "own", own))
        header |= {"own": written[1][0], "own_sha256": written[1][1]}
    _replace(folder / kind.index, json.dumps({**header, **content}, indent=2).encode())
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
    content = _index(folder, kind)
    path = _checked(folder, kind, content, "tensors", "sha256", hashed=not mapped)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error
    if mapped:
        return content, tensors
    # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
    return content, {name: t.clone() for name, t in tensors.items()}


def own_file(folder: Path, content: dict[str, Any], kind: FileKind, *, hashed: bool = True) -> Path:
    """Where the file of another format lies, checked as ``read`` checks the tensors."""
    return _checked(folder, kind, content, "own", "own_sha256", hashed=hashed)


def _checked(
    folder: Path, kind: FileKind, content: dict[str, Any], key: str, digest: str, *, hashed: bool
) -> Path:
    name = str(content.get(key))
    if Path(name).name != name:
        raise FileFormatError(
            f"{folder / kind.index} is damaged: {key}={name!r} is not a file name."
        )
    path = folder / name
    try:
        found = _sha256(path) if hashed else path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    if hashed and found != content.get(digest):
        raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
    return path


def fingerprint(module: nn.Module) -> str:
    """sha256 of a module's parameters, in order, with their shapes and dtypes."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(f"{tuple(parameter.shape)} {parameter.dtype}".encode())
        plain = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def _index(folder: Path, kind: FileKind) -> dict[str, Any]:
    path = folder / kind.index
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise FileFormatError(
            f"{folder} holds no {kind.index}, so it is not {kind.words}."
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
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        digest = _sha256(temporary)
        name = f"{kind.name}-{digest[:16]}.{ending}"
        os.replace(temporary, folder / name)
    return name, digest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _replace(path: Path, data: bytes) -> None:
    with _temporary(path.parent, path.name) as temporary:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    """A new file beside the one that it is going to be, removed if that does not happen."""
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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step; interrupted, the old file (or none) is there."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_json(content: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(words: str, tensors: Sequence[Tensor]) -> str:
    """sha256 of words and of tensors with their shapes and dtypes."""
    found = hashlib.sha256(words.encode())
    for tensor in tensors:
        found.update(f"|{tuple(tensor.shape)} {tensor.dtype}|".encode())
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(plain.numpy().tobytes())
    return found.hexdigest()
