"""Rows that survive the process: raw files of which a manifest says how much is committed.

A process killed at any moment leaves a folder from which ``resume`` continues after the last
commit. One process writes a folder at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.features.checks import check_like, check_shapes
from laplace_metric.features.disk import FEATURES, LABELS, DiskRows, plain
from laplace_metric.features.manifest import LOG, SPOOL, Commit, Log, write_manifest
from laplace_metric.features.raw import bytes_of
from laplace_metric.features.recovery import cut, recover


class Spool(DiskRows):
    """Features [N, D] and labels [N] in a folder, appended and committed.

    Parameters
    ----------
    folder : Path
        A folder without a spool; made if needed. One with a spool: ``Spool.resume(folder)``.

    Raises
    ------
    InputError
        If the folder has the files of a spool.

    Examples
    --------
    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     spool = Spool(folder)
    ...     spool.append(torch.ones(2, 3), torch.tensor([0, 1]))
    ...     spool.commit()
    ...     spool.append(torch.ones(5, 3), torch.arange(5))  # the process is killed here
    ...     spool.close()
    ...     resumed = Spool.resume(folder)
    >>> len(resumed), resumed.exhausted
    (2, False)
    """

    exhausted: bool
    """Whether ``complete`` was called, now or before the folder was reopened."""

    _log: Log
    _pending: Commit
    _published: dict[str, Any]

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder))
        _create(self.folder)
        self._start(Log(self.folder / LOG), exhausted=False)
        self._publish()

    @classmethod
    def resume(cls, folder: Path | str) -> Spool:
        """Reopen a folder as it was at the last commit; what was written after it is removed.

        Raises
        ------
        FileFormatError
            If a file is missing, shorter than committed, altered, foreign or newer. Nothing is
            changed in that case.
        """
        spool = cls.__new__(cls)
        DiskRows.__init__(spool, Path(folder))
        found = recover(spool.folder)
        cut(spool.folder, found.sizes)
        if found.like is not None:
            spool._shape(found.like)
        spool._start(found.log, exhausted=found.complete)
        return spool

    def append(self, features: Tensor, labels: Tensor) -> None:
        """Write features [n, D] and labels [n]; they count from the next ``commit`` on.

        Raises
        ------
        InputError
            For another width or type than before, or after ``complete``.
        """
        check_shapes(features, labels, where="features")
        check_like(features, labels, self.like, where="features")
        if self.exhausted:
            raise InputError(f"{self.folder} is complete: nothing can be appended.")
        features, labels = plain(features), plain(labels)
        super().append(features, labels)
        self._pending = Commit(
            self._pending.rows + len(features),
            crc32(bytes_of(features), self._pending.features),
            crc32(bytes_of(labels), self._pending.labels),
        )

    def commit(self) -> None:
        """Make every row so far durable; return when it is."""
        if self._pending.rows:
            for file in self._files:
                file.sync()
            self._log.append(self._pending)
            self._pending = Commit()
        self._publish()

    def complete(self) -> None:
        """Commit, and note that the loader was exhausted: ``exhausted`` is True from now on."""
        self.exhausted = True
        self.commit()

    def _start(self, log: Log, *, exhausted: bool) -> None:
        self._log, self._rows, self.exhausted = log, log.rows, exhausted
        self._pending, self._published = Commit(), {}

    def _publish(self) -> None:
        log = {"bytes": self._log.size, "sha256": self._log.sha256}
        content = {"rows": self._log.rows, "complete": self.exhausted, "log": log}
        content["like"] = self.like and {
            name: {"dtype": str(rows.dtype).removeprefix("torch."), "shape": list(rows.shape[1:])}
            for name, rows in zip(("features", "labels"), self.like, strict=True)
        }
        if content != self._published:
            write_manifest(self.folder, content)
            self._published = content


def _create(folder: Path) -> None:
    """Empty files, unless some of a spool are there."""
    folder.mkdir(parents=True, exist_ok=True)
    data = [folder / name for name in (FEATURES, LABELS, LOG)]
    if (folder / SPOOL.index).exists() or any(p.exists() and p.stat().st_size for p in data):
        raise InputError(
            f"{folder} holds a spool of features already: reopen it with Spool.resume, or choose "
            "another folder."
        )
    for path in data:
        path.touch()
