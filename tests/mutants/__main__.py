"""Which mutants do the tests of a room kill, and which tests kill which mutant?

Every mutant gets a process of its own, in a copy of the tree. First the tests run on the tree as
it is: a test that fails there kills nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.mutants import ROOMS, Mutant, copy_tree, read

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\s\[]+)?)", re.MULTILINE)
OUT_OF_TIME = "(out of time)"


def failures(tree: Path, arguments: list[str], seconds: float) -> list[str]:
    """Test functions that fail in the copy `tree`; processes left after `seconds` are killed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    run = subprocess.Popen(
        [*command, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return [OUT_OF_TIME]
    finally:
        kill(run)
    found = list(dict.fromkeys(FAILED.findall(output)))
    return found or ([] if run.returncode in (0, 5) else [output[-500:]])


def kill(run: subprocess.Popen[str]) -> None:
    """Kill the process group of `run`, if any of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def tried(mutant: Mutant, tree: Path, arguments: list[str], seconds: float) -> list[str]:
    """Test functions that fail with `mutant`; `tree` is whole again afterwards."""
    path, whole = tree / mutant.file, tree.with_name("whole")
    shutil.copy2(path, whole)
    mutant.apply(tree)
    try:
        return failures(tree, arguments, seconds)
    finally:
        shutil.copy2(whole, path)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", default=ROOMS, metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--tests", nargs="+", help="paths instead of the tests of the room")
    parser.add_argument(
        "--matrix", type=Path, metavar="JSON", help="all tests that kill, to a file"
    )
    parser.add_argument("--seconds", type=float, default=300, help="of one run, then it is killed")
    parser.add_argument("--pytest", default="", help='more options, for example "-m quick -n 2"')
    options = parser.parse_args()
    passed_on = [*shlex.split(options.pytest), *([] if options.matrix else ["-x"])]
    lived, matrix = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder) / "tree")
        for room in options.rooms:
            tests, mutants = read(room)
            arguments = [*(options.tests or tests), *passed_on]
            broken = failures(tree, arguments, options.seconds)
            if broken:
                raise SystemExit(f"{room}: fails without a mutant: {' '.join(broken)}")
            for mutant in mutants:
                start = time.perf_counter()
                killers = tried(mutant, tree, arguments, options.seconds)
                lived += not killers
                matrix[f"{room}: {mutant.what}"] = killers
                verdict = f"killed by {' '.join(killers[:3])}" if killers else "LIVED"
                taken = time.perf_counter() - start
                print(f"{room}: {mutant.what}: {verdict} ({taken:.0f} s)", flush=True)
    print(f"{len(matrix) - lived} of {len(matrix)} mutants killed")
    if options.matrix:
        options.matrix.write_text(json.dumps(matrix, indent=1) + "\n", encoding="utf-8")
    return int(lived > 0)


if __name__ == "__main__":
    sys.exit(main())
