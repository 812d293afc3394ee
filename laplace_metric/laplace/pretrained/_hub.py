"""A folder of this machine, or a repository of a hub that is copied to it."""

from __future__ import annotations

import re
from pathlib import Path

from laplace_metric._utils.hub import without_retries
from laplace_metric._utils.validation import as_path
from laplace_metric.errors import InputError, MissingPackageError

NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Of a repository: owner and name."""


def local_folder(source: str | Path, revision: str | None = None) -> Path:
    """The folder itself, or that of the machine's cache that holds the repository.

    Raises
    ------
    InputError
        If there is no such folder and no such repository, or it cannot be reached.
    MissingPackageError
        For a repository, without the package huggingface_hub.
    """
    path = as_path("source", source).expanduser()
    if path.is_dir():
        return path
    name = str(source)
    if isinstance(source, Path) or not NAME.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"source={name!r} is no folder of this machine, nor the name of a repository: pass one "
            'that save_pretrained wrote, or "owner/name".'
        )
    with without_retries(name):
        return _downloaded(name, revision)


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        what = f"source={name!r}, which is no folder of this machine,"
        raise MissingPackageError("huggingface_hub", what, "pip install huggingface_hub") from error
    try:
        return Path(snapshot_download(name, revision=revision))
    except Exception as error:  # the hub's own, those of its transport, those of the disk
        first = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"source={name!r} cannot be downloaded: {type(error).__name__}: {first.rstrip('.')}."
        ) from error
