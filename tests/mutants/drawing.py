"""Draw mutants of a room: the same ones for one seed and one state of the files."""

from __future__ import annotations

import difflib
import marshal
import random
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Edit, Place, places

PACKAGES = ("laplace_metric", "baselines", "benchmarks")


@dataclass(frozen=True)
class Mutant:
    """One place of one file that is wrong on purpose."""

    file: str
    place: Place
    edit: Edit

    def source(self, root: Path) -> bytes:
        """Return the file with the error."""
        return self.edit.applied((root / self.file).read_bytes())

    def diff(self, root: Path) -> str:
        """Return the error as a unified diff, without the names of the files."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        after = self.source(root).decode().splitlines()
        return "\n".join(list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:])

    def __str__(self) -> str:
        return f"{self.file}:{self.place.line}: {self.edit.what}"


def files_of(room: str, root: Path) -> list[str]:
    """Return the files of a room: a folder or a file, as a path or as its place in a package.

    Raises
    ------
    ValueError
        If there is no such file or folder, or it holds no Python.
    """
    for base in (root, *(root / name for name in PACKAGES)):
        for path in (base / room, base / f"{room}.py"):
            files = (
                [path] if path.suffix == ".py" and path.is_file() else sorted(path.rglob("*.py"))
            )
            if files:
                return [file.relative_to(root).as_posix() for file in files]
    raise ValueError(f"ROOM is {room!r}: no such folder or file in {', '.join(PACKAGES)}")


def draw(room: str, root: Path, n: int, seed: int) -> list[Mutant]:
    """Return `n` mutants at places of equal chance, or one a place where there are fewer places."""
    sources = {file: (root / file).read_bytes() for file in files_of(room, root)}
    every = [(file, place) for file in sources for place in places(sources[file])]
    random_state = random.Random(seed)
    random_state.shuffle(every)
    drawn = list[Mutant]()
    for file, place in every:
        if len(drawn) == n:
            break
        edits = [edit for edit in place.edits if differs(sources[file], edit)]
        if edits:
            drawn.append(Mutant(file, place, random_state.choice(edits)))
    return drawn


def differs(source: bytes, edit: Edit) -> bool:
    """Return whether the source with the error is sound, and no other way to write the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of code that only a mutant contains
        try:
            changed = compile(edit.applied(source), "file", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return marshal.dumps(changed) != marshal.dumps(
            compile(source, "file", "exec", dont_inherit=True)
        )
