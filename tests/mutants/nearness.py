"""Tests that can notice an error in a file, the nearest first: fewest imports from test to file.

A door that passes a name on counts for nothing: who imports the name imports the file behind it.
Examples in the file itself come first, then tests that have the name of the file or of its room,
and among like ones those that import most of the room.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from functools import cached_property
from pathlib import Path

TESTS = "tests"
NOT_TESTS = ("tests/mutants/",)
FAR = ("tests/benchmarks/",)
"""Tests of whole measurements: they take long and notice little."""


class Imports:
    """Who imports whom among the files of one package and the tests of a tree."""

    def __init__(self, root: Path, packages: tuple[str, ...]) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.texts: dict[str, str] = {}
        for path in (p for name in (*packages, TESTS) for p in sorted((root / name).rglob("*.py"))):
            name = path.relative_to(root).as_posix()
            self.texts[name] = path.read_text(encoding="utf-8")
            self.trees[name] = ast.parse(self.texts[name])
        self._files = {_dotted(name): name for name in self.trees}

    @cached_property
    def _passed_on(self) -> dict[str, dict[str, str]]:
        """For each module, the names that it imports from others, and from which."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        found[_dotted(name)][alias.asname or alias.name] = node.module
        return found

    def _home(self, module: str, name: str) -> str | None:
        """Return the file that defines `name` of `module`, through the doors that pass it on."""
        seen = set[str]()
        while module not in seen:
            seen.add(module)
            if f"{module}.{name}" in self._files:
                return self._files[f"{module}.{name}"]
            module = self._passed_on[module].get(name, module)
        return self._files.get(module)

    @cached_property
    def imported(self) -> dict[str, set[str]]:
        """For each file, those that define what it imports."""
        return {name: self._imported(_run(tree)) - {name} for name, tree in self.trees.items()}

    def _imported(self, nodes: list[ast.AST]) -> set[str]:
        doors, found = dict[str, str](), set[str | None]()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {self._home(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    doors[alias.asname or alias.name] = alias.name
                    found.add(self._files.get(alias.name))
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.add(self._home(doors.get(node.value.id, ""), node.attr))
        return {name for name in found if name is not None}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """For each file, those that import it; a test imports what its ``conftest.py`` does."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, others in self.imported.items():
            for other in others:
                found[other].add(name)
        for name in filter(is_test, self.trees):
            for folder in Path(name).parents:
                if (shared := (folder / "conftest.py").as_posix()) in self.trees:
                    found[shared].add(name)
        return found

    def nearest(self, file: str) -> list[str]:
        """Return the files with tests that can notice an error in `file`, the nearest first."""
        distances, waiting = {file: 0}, deque([file])
        while waiting:
            name = waiting.popleft()
            for other in sorted(self.importers[name]):
                if other not in distances:
                    distances[other] = distances[name] + 1
                    waiting.append(other)
        tests = [name for name in distances if is_test(name)]
        if ">>> " in self.texts[file]:
            tests.append(file)
        room, names = Path(file).parent.as_posix(), set(_parts(file))
        within = {t: sum(other.startswith(room) for other in self.imported[t]) for t in tests}

        def rank(name: str) -> tuple[object, ...]:
            far = name.startswith(FAR), not names & _titles(name), distances[name]
            return name != file, *far, -within[name], name

        return sorted(tests, key=rank)


def is_test(name: str) -> bool:
    """Return whether a file has tests, but for those of the mutants themselves."""
    return Path(name).name.startswith("test_") and not name.startswith(NOT_TESTS)


def _parts(file: str) -> tuple[str, ...]:
    """Return what a file is called below its package: its folder and its own name."""
    return tuple(part.strip("_") for part in Path(file).with_suffix("").parts[1:])


def _titles(name: str) -> set[str]:
    """Return what a file with tests is called, and its folders: names of rooms among them."""
    stem = Path(name).stem.removeprefix("test_")
    return {*Path(name).parts[1:-1], stem, stem.removesuffix("s")}


def _dotted(name: str) -> str:
    return ".".join(Path(name).with_suffix("").parts).removesuffix(".__init__")


def _run(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes, without those that only a type checker reads."""
    found, waiting = list[ast.AST](), [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            waiting.extend(ast.iter_child_nodes(node))
    return found
