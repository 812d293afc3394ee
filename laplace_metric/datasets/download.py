"""Fetch the original files of an image set, when asked to."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from laplace_metric.datasets.remotes import REMOTES, Remote
from laplace_metric.datasets.request import Request
from laplace_metric.errors import FileFormatError, LaplaceMetricError


def download(request: Request) -> tuple[Path, ...]:
    """Fetch what the data folder lacks of one split.

    Nothing is fetched for sets that come with a package, or that are unpacked by hand.
    A file that is there already, gzipped or not, is left alone. A new one is checked against
    its published hash before it takes its name.

    Returns
    -------
    tuple of Path
        The files that were fetched now.

    Raises
    ------
    LaplaceMetricError
        If pooch is not installed, or an address cannot be reached.
    FileFormatError
        If what was fetched has not the known hash.

    Examples
    --------
    >>> download(Request("digits", "train"))
    ()
    """
    remotes = REMOTES.get((request.name, request.split), ())
    if not remotes:
        return ()
    folder = request.folder(create=True)
    missing = [remote for remote in remotes if not _present(folder / remote.path)]
    return tuple(_fetch(_pooch(), remote, folder) for remote in missing)


def _present(path: Path) -> bool:
    return path.is_file() or (path.suffix == ".gz" and path.with_suffix("").is_file())


def _pooch() -> ModuleType:
    try:
        return import_module("pooch")
    except ImportError as error:
        raise LaplaceMetricError(
            "download=True needs the package pooch: pip install 'laplace-metric[data]'."
        ) from error


def _fetch(pooch: ModuleType, remote: Remote, folder: Path) -> Path:
    path = folder / remote.path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pooch.retrieve(remote.url, remote.hash, fname=path.name, path=path.parent, progressbar=True)
    except ValueError as error:
        raise FileFormatError(
            f"{remote.url} no longer gives the file with {remote.hash} ({error}). Nothing was "
            f"kept; put a copy that you trust at {path}."
        ) from error
    except OSError as error:
        raise LaplaceMetricError(
            f"{remote.url} could not be fetched ({error}). Try again, or put the file at {path} "
            "by hand."
        ) from error
    return path
