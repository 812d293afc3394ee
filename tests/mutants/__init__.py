"""Small errors that some test must notice: ``python -m tests.mutants``, one JSON file a room.

``{"tests": ["tests/curvature"], "mutants": [{"file": ..., "old": ..., "new": ..., "what": ...}]}``:
`old` is text that occurs exactly once in `file`, `what` says in one line what `new` breaks, and
`tests` are the paths that must notice it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("laplace_metric", "baselines", "benchmarks", "tests", "docs", "examples")
ROOMS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.json")))


@dataclass(frozen=True)
class Mutant:
    """One place of one file that is wrong on purpose."""

    file: str
    old: str
    new: str
    what: str

    def apply(self, root: Path) -> None:
        """Write the error into the copy of the tree at `root`."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} occurs {source.count(self.old)} times")
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")


def read(room: str) -> tuple[list[str], list[Mutant]]:
    """Paths of the tests of `room`, and its mutants."""
    stored = json.loads(Path(__file__).with_name(f"{room}.json").read_text(encoding="utf-8"))
    return stored["tests"], [Mutant(**mutant) for mutant in stored["mutants"]]


def copy_tree(to: Path) -> Path:
    """Copy what tests read to the new folder `to`, compiled files included."""
    to.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, to / name)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, to)
    return to
