"""Judge a mutant: run the tests that reach it, the nearest first, until one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.drawing import Mutant
from tests.mutants.nearness import Imports
from tests.mutants.recording import Record, Recordings
from tests.mutants.tree import Tree

FIRST_SECONDS = 4.0
"""Tests of the first run, which notices most mutants; each next one has three times as many."""

TOGETHER = 6
"""Files that one process records: to import the package takes longer than most of them."""
STARTED = 1.0
"""Seconds that a file counts for, beyond those of its tests."""


@dataclass(frozen=True)
class Verdict:
    """`killer` is the test that noticed, empty if the mutant lived; `tests` is how many ran."""

    killer: str
    tests: int
    said: str

    @property
    def lived(self) -> bool:
        """Whether no test noticed."""
        return not self.killer


class Judge:
    """Judge mutants in a copy of a tree; `reach` and `seconds` bound the tests of each."""

    def __init__(
        self,
        tree: Tree,
        imports: Imports,
        recordings: Recordings,
        *,
        seconds: float,
        reach: float,
    ) -> None:
        self._tree, self._imports, self._recordings = tree, imports, recordings
        self._seconds, self._reach = seconds, reach

    def verdict(self, mutant: Mutant) -> Verdict:
        """Run tests until one fails, or until all that are near have run."""
        content, ran = mutant.source(self._tree.root), 0
        for tests, seconds in self._parts(mutant):
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            with self._tree.with_content(mutant.file, content):
                run = self._tree.run(files, tests=tests, seconds=3 * seconds + 20)
            ran += len(tests)
            if run.late:
                return Verdict("(out of time)", ran, "out of time")
            if run.found is None:
                return Verdict("(its process died)", ran, "its process died")
            if run.found["failed"]:
                return Verdict(run.found["failed"][0], ran, run.found["failed"][0])
        return Verdict(
            "", ran, f"{ran} tests run it" if ran else "no near test runs it in its own process"
        )

    def _parts(self, mutant: Mutant) -> Iterator[tuple[list[str], float]]:
        """Yield names of tests and how long they take together, the nearest first."""
        tests, seconds, part, total = list[str](), 0.0, FIRST_SECONDS, 0.0
        for record in self._records(mutant):
            for test, own in record.reaching(mutant) if record else ():
                if total + own > self._seconds:
                    break
                tests.append(test)
                seconds, total = seconds + own, total + own
            if tests and (record is None or seconds >= part):
                yield tests, seconds
                tests, seconds, part = [], 0.0, 3 * part if record else part
        if tests:
            yield tests, seconds

    def _records(self, mutant: Mutant) -> Iterator[Record | None]:
        """Yield records of the nearest files: those that are there, then those to be made.

        None comes before one is made, which takes longer than to run the tests that are known.
        """
        near, taken = self._imports.nearest(mutant.file), 0.0
        known = [tests for tests in near if self._recordings.has(tests, mutant.file)]
        for tests in known:
            yield self._recordings.known(tests)
        for first in range(0, len(near), TOGETHER):
            group = near[first : first + TOGETHER]
            missing = [tests for tests in group if tests not in known]
            while missing and taken <= self._reach:
                yield None
                made = self._recordings.made(missing)
                yield from made.values()
                missing = [tests for tests in missing if tests not in made]
            done = [self._recordings.known(tests) for tests in group if tests not in missing]
            taken += sum(STARTED + record.took for record in done)


def cache_of(root: Path) -> Path:
    """Return the folder of the records of a tree, which git ignores."""
    return root / ".cache" / "mutants"
