"""Which lines each test of a file runs, and how long it takes: recorded once, then kept.

A record holds while the file with the tests and the file that is asked about are as they were.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.mutants.drawing import Mutant
from tests.mutants.tree import Tree

LONGEST = 160
"""Seconds of computing after which a record is given up; it begins no test in their last three
quarters, so of a file that takes long the first tests are recorded."""


@dataclass(frozen=True)
class Record:
    """Tests of one file: seconds of each, those that fail, lines that each runs."""

    seconds: dict[str, float]
    failed: tuple[str, ...]
    lines: dict[str, dict[str, list[str]]]
    hashes: dict[str, str]
    """Of the file with tests, what it shares, and all files that run."""

    @cached_property
    def took(self) -> float:
        """Seconds of all tests."""
        return sum(self.seconds.values())

    def reaching(self, mutant: Mutant) -> list[tuple[str, float]]:
        """Return tests that pass and run a line of the mutant, and seconds; the shortest first."""
        first, last = mutant.place.run
        lines = self.lines.get(mutant.file, {})
        found = {t for line, tests in lines.items() if first <= int(line) <= last for t in tests}
        passed = ((test, self.seconds.get(test, 0.0)) for test in found - {*self.failed})
        return sorted(passed, key=lambda pair: (pair[1], pair[0]))

    def holds(self, file: str, root: Path) -> bool:
        """Return whether the record still says which tests run `file`."""
        of = [name for name in self.hashes if name.startswith("tests/") or name == file]
        if file not in self.hashes:  # it may be a part of what ran before
            of = list(self.hashes)
        return all(hash_of(root / name) == self.hashes[name] for name in of)


class Recordings:
    """Records of a tree, made where there is none."""

    def __init__(self, tree: Tree, cache: Path, options: list[str]) -> None:
        self._tree, self._cache, self._options = tree, cache, options
        self._read: dict[str, Record] = {}

    def has(self, tests: str, file: str) -> bool:
        """Return whether it is known which tests of the file `tests` run `file`."""
        if tests not in self._read and self._path(tests).is_file():
            self._read[tests] = _read(self._path(tests))
        return tests in self._read and self._read[tests].holds(file, self._tree.root)

    def made(self, files: list[str]) -> dict[str, Record]:
        """Record files with tests in one process; if it takes long, some are left out."""
        run = self._tree.run(files, seconds=LONGEST, options=self._options)
        if run.found is None and len(files) > 1:  # its process died: in which file?
            return {name: record for file in files for name, record in self.made([file]).items()}
        found = run.found or {"seconds": {}, "failed": [], "lines": {}, "stopped": False}
        began = {_file(test) for test in found["seconds"]}
        for file in (file for file in files if file in began or not found["stopped"]):
            self._read[file] = self._record(file, found)
            self._cache.mkdir(parents=True, exist_ok=True)
            text = json.dumps(vars(self._read[file])).encode()
            self._path(file).write_bytes(gzip.compress(text, compresslevel=5))
        return {file: self._read[file] for file in files if file in self._read}

    def _record(self, file: str, found: dict[str, Any]) -> Record:
        """Return the part of one file of what was found in several."""
        lines: dict[str, dict[str, list[str]]] = {}
        for name, of in found["lines"].items():
            own = {line: [t for t in tests if _file(t) == file] for line, tests in of.items()}
            if kept := {line: tests for line, tests in own.items() if tests}:
                lines[name] = kept
        root = self._tree.root
        shared = [(folder / "conftest.py").as_posix() for folder in Path(file).parents]
        names = {file, *lines, *(name for name in shared if (root / name).is_file())}
        return Record(
            seconds={test: s for test, s in found["seconds"].items() if _file(test) == file},
            failed=tuple(test for test in found["failed"] if _file(test) == file),
            lines=lines,
            hashes={name: hash_of(root / name) for name in sorted(names)},
        )

    def known(self, tests: str) -> Record:
        """Return the record of a file that ``has`` found."""
        return self._read[tests]

    def _path(self, tests: str) -> Path:
        key = hashlib.sha256("\n".join([tests, *self._options]).encode()).hexdigest()[:16]
        return self._cache / f"{Path(tests).stem}-{key}.json.gz"


def _read(path: Path) -> Record:
    stored: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return Record(**{**stored, "failed": tuple(stored["failed"])})


def _file(test: str) -> str:
    return test.partition("::")[0]


def hash_of(path: Path) -> str:
    """Return the hash of a file, of none the hash of nothing."""
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
