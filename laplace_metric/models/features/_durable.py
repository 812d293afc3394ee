"""Rows that survive the process: shards, and one JSON that says which of them are committed.

A process killed at any moment leaves the folder as of the last commit: a shard is written beside
its place and moved there, and replacing ``features.json`` is the one step that makes it count. One
process writes a folder at a time.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from laplace_metric._utils import files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models.features._rows import RowSpec, check_shapes, check_spec
from laplace_metric.models.features._shards import Shard, ShardRows

FEATURE_FOLDER = files.FileKind("features", "a folder of features", 1)
SHARD_NAME = re.compile(r"features-\d+\.safetensors")
HIDDEN_NAME = re.compile(r"\.features[-.\w]*\.(json|safetensors)\.([0-9a-f]{16}\.tmp|lock)")
REMEDY = "Nothing was changed: restore the folder from a copy, or delete it and fit again."


class DurableRows(ShardRows):
    """Features [N, D] and labels [N] in a folder, appended and committed.

    Parameters
    ----------
    folder : Path
        A folder without features; made if needed. One with features: ``DurableRows.resume``.

    Raises
    ------
    InputError
        If the folder holds features.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     rows = DurableRows(folder)
    ...     rows.append(torch.ones(2, 3), torch.tensor([0, 1]))
    ...     rows.commit()
    ...     rows.append(torch.ones(5, 3), torch.arange(5))  # the process is killed here
    ...     resumed = DurableRows.resume(folder)
    >>> len(resumed), resumed.exhausted
    (2, False)
    """

    exhausted = False
    """Whether ``complete`` was called, now or before the folder was reopened."""

    _committed: bytes | None = None
    """The JSON as this process wrote or read it last."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder))
        if self._index.exists() or any(self.folder.glob("features-*.safetensors")):
            raise InputError(
                f"{folder} holds features already: reopen it with DurableRows.resume, or choose "
                "another folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._publish()

    @classmethod
    def resume(cls, folder: Path | str) -> DurableRows:
        """Reopen a folder as it was at the last commit; what was written after it is removed.

        Raises
        ------
        FileFormatError
            If a file is missing, altered, foreign or newer. Nothing is changed in that case.
        """
        rows = cls.__new__(cls)
        ShardRows.__init__(rows, Path(folder))
        content = _read_index(rows.folder)
        shards = [_verified(rows.folder / Path(n).name, s) for n, s in content["shards"].items()]
        rows._committed, rows.exhausted = rows._index.read_bytes(), content["exhausted"]
        if content["dtypes"]:
            features, labels = (getattr(torch, name) for name in content["dtypes"])
            width = content["width"]
            rows._start((torch.empty(0, width, dtype=features), torch.empty(0, dtype=labels)))
        rows._adopt(shards)
        rows._remove_uncommitted()
        return rows

    def append(self, features: Float[Tensor, "n D"], labels: Int[Tensor, " n"]) -> None:
        """Add rows; they count from the next ``commit`` on.

        Raises
        ------
        InputError
            For another width or type than before, or after ``complete``.
        """
        check_shapes(features, labels, where="features")
        check_spec(features, labels, self.spec, where="features")
        if self.exhausted:
            raise InputError(f"{self.folder} is complete: nothing can be appended.")
        super().append(features, labels)

    def commit(self) -> None:
        """Make every row so far durable; return when it is.

        Raises
        ------
        FileFormatError
            If another process has written to the folder.
        """
        self.flush()
        self._publish()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted: ``exhausted`` is True from now on."""
        self.exhausted = True
        self.commit()

    @property
    def _index(self) -> Path:
        return self.folder / FEATURE_FOLDER.index

    def _write(self, path: Path, columns: dict[str, Tensor]) -> Shard:
        with files.writing(path) as temporary:
            save_file(columns, temporary)
            shard = Shard.open(temporary)
            sha256 = files.sha256_of(temporary)
        return Shard(path, shard.n_rows, shard.offsets, sha256)

    def _publish(self) -> None:
        """Replace the JSON, if there is anything new; return when it is on the disk."""
        content = _index_of(self._shards, self.spec, exhausted=self.exhausted)
        if content == self._committed:
            return
        if self._committed is not None and self._index.read_bytes() != self._committed:
            # it may have removed shards of this one
            raise FileFormatError(f"{self.folder} is written by another process: use two folders.")
        files.sync_folder(self.folder)  # the shards' names
        files.write_atomically(self._index, content)
        files.sync_folder(self.folder)
        self._committed = content

    def _remove_uncommitted(self) -> None:
        """Remove shards that the JSON does not name, and files that were not finished."""
        committed = {shard.path for shard in self._shards}
        for path in set(self.folder.glob("features-*")) - committed:
            if SHARD_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".features*"):
            if HIDDEN_NAME.fullmatch(path.name):
                files.remove_hidden(path)


def _index_of(shards: list[Shard], spec: RowSpec | None, *, exhausted: bool) -> bytes:
    """The JSON of what is committed; with its own sha256, so that every altered bit is noticed."""
    content = {
        "exhausted": exhausted,
        "width": spec and spec[0].shape[1],
        "dtypes": [str(column.dtype).removeprefix("torch.") for column in spec or ()],
        "shards": {s.path.name: {"rows": s.n_rows, "sha256": s.sha256} for s in shards},
    }
    header = {"format": FEATURE_FOLDER.format, "version": FEATURE_FOLDER.version}
    return json.dumps(files.sealed({**header, **content}), indent=1).encode()


def _read_index(folder: Path) -> dict[str, Any]:
    """What ``_index_of`` gave; ``FileFormatError`` if it is missing, damaged, foreign or newer."""
    try:
        content = files.read_index(folder, FEATURE_FOLDER)
    except FileFormatError as error:
        raise FileFormatError(f"{error} {REMEDY}") from error
    return {name: content.get(name) for name in ("exhausted", "width", "dtypes", "shards")}


def _verified(path: Path, committed: dict[str, Any]) -> Shard:
    """A committed shard; ``FileFormatError`` if the file is missing or was altered."""
    try:
        sha256 = files.sha256_of(path)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from error
    if sha256 != committed["sha256"]:
        raise FileFormatError(
            f"{path} is damaged: its sha256 is not the one in {FEATURE_FOLDER.index}. {REMEDY}"
        )
    return Shard.open(path, sha256)
