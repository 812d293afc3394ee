"""A value on disk: a folder with a JSON, ``posterior.json``, and the safetensors that it names.

The tensors are written first, under a name that holds their hash; replacing the JSON is the one
atomic step that makes them current. A reader sees the old posterior or the new one, never a mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from laplace_metric.errors import FileFormatError

VERSION = 2
INDEX = "posterior.json"


@dataclass(frozen=True)
class Kind:
    """What a folder holds: its name in file names and in messages, and the version of its format.

    Examples
    --------
    >>> Kind("checkpoint", "a training checkpoint", 1).index
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


POSTERIOR = Kind("posterior", "a saved posterior", VERSION)


def write(
    folder: Path, content: dict[str, Any], tensors: dict[str, Tensor], kind: Kind = POSTERIOR
) -> None:
    """Make ``content`` (JSON) and ``tensors`` the current value of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = tensors_to_bytes({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    name = f"{kind.name}-{digest[:16]}.safetensors"
    _replace(folder / name, data)
    header = {"format": kind.format, "version": kind.version, "tensors": name, "sha256": digest}
    _replace(folder / kind.index, json.dumps({**header, **content}, indent=2).encode())
    for old in folder.glob(f"{kind.name}-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def read(folder: Path, kind: Kind = POSTERIOR) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON content and the tensors of what ``write`` wrote.

    Raises
    ------
    FileFormatError
        If the folder has no such value, or one that is damaged, foreign or newer.
    """
    content = _index(folder, kind)
    name = str(content.get("tensors"))
    if Path(name).name != name:
        raise FileFormatError(
            f"{folder / kind.index} is damaged: tensors={name!r} is not a file name."
        )
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != content.get("sha256"):
        raise FileFormatError(f"{path} is damaged: its sha256 is not the one in {kind.index}.")
    try:
        # cloned: a view into the file's bytes may be unaligned, where products can round otherwise
        return content, {name: t.clone() for name, t in tensors_from_bytes(data).items()}
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}.") from error


def fingerprint(module: nn.Module) -> str:
    """sha256 of a module's parameters, in order, with their shapes and dtypes."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(f"{tuple(parameter.shape)} {parameter.dtype}".encode())
        plain = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def _index(folder: Path, kind: Kind) -> dict[str, Any]:
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


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
