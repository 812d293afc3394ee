"""A process that has imported the libraries: it forks for each run of tests, which begins at once.

``python worker.py`` in a copy of the tree reads one request a line from its input, as JSON, and
answers with one line; ``Tree.run`` writes both.
Nothing of the tree is imported before the fork, so that each run sees the files as they are.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = (
    *("torch", "numpy", "scipy.stats", "scipy.optimize", "scipy.special", "hypothesis", "coverage"),
    *("sklearn.linear_model", "sklearn.isotonic", "pytorch_metric_learning.losses", "PIL.Image"),
    *("safetensors.torch", "beartype.door", "jaxtyping", "tqdm", "faiss"),
)
LONGEST_TEST = 4
"""A record ends with the test that computes when this part of its seconds is over."""
WAITING = 60
"""Seconds that a run may wait, for other processes or for a lock, beyond what it may compute."""


class Outcomes:
    """What failed in a run, and how long each test computed, its processes included."""

    def __init__(self) -> None:
        self.failed, self.seconds = list[str](), dict[str, float]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begin = sum(os.times()[:4])
        yield
        self.seconds[item.nodeid] = sum(os.times()[:4]) - begin

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (not imported)")


class Chosen:
    """Only some tests, in the order of a list."""

    def __init__(self, tests: list[str]) -> None:
        self._rank = {name: i for i, name in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._rank]
        items.sort(key=lambda item: self._rank[item.nodeid])


class Lines:
    """Which test runs which lines; what a shared fixture runs counts for all tests that use it."""

    def __init__(self, root: Path, seconds: float) -> None:
        import coverage

        self._root, self._seconds = root, seconds
        skipped = [str(root / "tests" / "*")]
        self._measured = coverage.Coverage(
            None, config_file=False, include=[str(root / "*")], omit=skipped
        )
        self.stopped, self._running = False, [""]
        self._fixtures: dict[str, list[str]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._fixtures[item.nodeid] = list(getattr(item, "fixturenames", ()))
        yield from self._during(item.nodeid)
        if time.process_time() > self._seconds:
            self.stopped = True
            item.session.shouldstop = "the other tests of this file are not recorded"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
        else:
            yield from self._during(f"fixture {fixturedef.argname}")

    def _during(self, name: str) -> Iterator[None]:
        self._running.append(name)
        self._measured.switch_context(name)
        yield
        self._running.pop()
        self._measured.switch_context(self._running[-1])

    def __enter__(self) -> Lines:
        self._measured.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._measured.stop()

    def found(self) -> dict[str, dict[int, list[str]]]:
        """Return for each file and line the tests that run it."""
        data = self._measured.get_data()
        tests, users = set(self._fixtures), defaultdict[str, list[str]](list)
        for test, names in self._fixtures.items():
            for name in names:
                users[f"fixture {name}"].append(test)
        found: dict[str, dict[int, list[str]]] = {}
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            found[Path(path).relative_to(self._root).as_posix()] = {
                line: sorted({t for name in names for t in users.get(name, [name])} & tests)
                for line, names in lines.items()
            }
        return found


def run(request: dict[str, Any], answer: Path) -> None:
    """Run tests of the tree in this process and write what came of it."""
    root, outcomes = Path.cwd(), Outcomes()
    options = [*request["files"], "--tb=no", "-p", "no:cacheprovider", *request["options"]]
    if request["record"]:
        lines = Lines(root, request["seconds"] / LONGEST_TEST)
        with lines:
            pytest.main(options, plugins=[outcomes, lines])
        found, stopped = lines.found(), lines.stopped
    else:
        pytest.main([*options, "-x"], plugins=[outcomes, Chosen(request["tests"])])
        found, stopped = {}, False
    written = {
        "failed": outcomes.failed,
        "seconds": outcomes.seconds,
        "lines": found,
        "stopped": stopped,
    }
    answer.write_text(json.dumps(written), encoding="utf-8")


def forked(request: dict[str, Any], answer: Path) -> dict[str, Any]:
    """Run a request in a process of its own, with an end to what it may compute and wait."""
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        seconds = int(request["seconds"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        try:
            run(request, answer)
        finally:
            os._exit(0)
    begin, end = time.monotonic(), time.monotonic() + 2 * request["seconds"] + WAITING
    status = None
    try:
        while status is None and time.monotonic() < end:
            pid, code = os.waitpid(child, os.WNOHANG)
            if pid:
                status = code
            else:
                time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    late = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    found = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else None
    return {"late": late, "found": found, "took": time.monotonic() - begin}


def main() -> None:
    # the folder of this file gives way to the tree that the tests are of
    sys.path[0] = os.getcwd()
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a run that is left ends, too
    answer, out = Path(os.environ["MUTANTS_ANSWER"]), os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line), answer)), file=out, flush=True)


if __name__ == "__main__":
    main()
