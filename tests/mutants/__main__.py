"""Draw mutants of a room and see which of them its tests notice.

A mutant is tried in a copy of the tree, on the tests that run its line, the nearest first. Those
that live are printed as a diff: a reader says whether such a mutant is an error that needs a test,
or only another way to write the same. The exit status is 1 if one lives.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tqdm import tqdm

from tests.mutants import ROOT
from tests.mutants.drawing import Mutant, draw
from tests.mutants.judging import Judge, Verdict, cache_of
from tests.mutants.nearness import Imports
from tests.mutants.recording import Recordings
from tests.mutants.tree import copied

Numbered = tuple[int, Mutant]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    add = parser.add_argument
    add("room", metavar="ROOM", help="folder or file: laplace_metric/curvature, guard.py")
    add("--draw", type=int, default=30, metavar="N", help="how many mutants (default: 30)")
    add("--seed", type=int, default=0, help="another seed draws others (default: 0)")
    add("--only", type=int, nargs="+", metavar="K", help="only these of the draw, from 1")
    add("--list", action="store_true", help="print the draw and run nothing")
    add("--jobs", type=int, default=1, help="processes (default: 1)")
    add(
        "-m",
        "--marker",
        default="not slow",
        metavar="TIER",
        help='tests that count, as for pytest (default: "not slow"); with quick most mutants are '
        "killed and little is recorded: try those that live again without",
    )
    add(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="seconds of tests that a mutant must survive (default: 60)",
    )
    add(
        "--reach",
        type=float,
        default=200,
        metavar="S",
        help="look for tests that run its line among the nearest files that take S seconds "
        "together (default: 200); what each test runs is recorded once, in .cache/mutants",
    )
    return parser


def judged(
    mutants: list[Numbered], options: argparse.Namespace, root: Path
) -> Iterator[tuple[Numbered, Verdict]]:
    """Yield mutants with their verdicts, in the order in which they are known."""
    package = Path(mutants[0][1].file).parts[0]
    with ExitStack() as stack:
        judges = SimpleQueue[Judge]()
        imports = Imports(root, (package,))
        for _ in range(options.jobs):
            tree = stack.enter_context(copied(root))
            recordings = Recordings(tree, cache_of(root), ["-m", options.marker])
            limits = {"seconds": options.timeout, "reach": options.reach}
            judges.put(Judge(tree, imports, recordings, **limits))

        def verdict(mutant: Mutant) -> Verdict:
            judge = judges.get()
            try:
                return judge.verdict(mutant)
            finally:
                judges.put(judge)

        if options.jobs == 1:
            yield from ((mutant, verdict(mutant[1])) for mutant in mutants)
            return
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        waiting = {pool.submit(verdict, mutant[1]): mutant for mutant in mutants}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def shown(k: int, mutant: Mutant, root: Path) -> str:
    """Return a drawn mutant for a reader: its number, place and diff."""
    return f"{k}. {mutant}\n{mutant.diff(root)}\n"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command and return its exit status."""
    options = parser().parse_args(arguments)
    try:
        drawn = list(enumerate(draw(options.room, root, options.draw, options.seed), start=1))
    except ValueError as error:
        parser().error(str(error))
    chosen = [(k, mutant) for k, mutant in drawn if options.only is None or k in options.only]
    if options.list:
        print("\n".join(shown(k, mutant, root) for k, mutant in chosen))
        return 0
    if not chosen:
        parser().error(f"--only must be among 1 to {len(drawn)}, the mutants of the draw")
    lived, known = list[Numbered](), 0
    try:
        with tqdm(total=len(chosen), unit="mutant", dynamic_ncols=True) as bar:
            for (k, mutant), verdict in judged(chosen, options, root):
                known += 1
                lived += [(k, mutant)] * verdict.lived
                bar.write(f"{k}. {mutant}: {'LIVES, ' if verdict.lived else ''}{verdict.said}")
                bar.update()
    except KeyboardInterrupt:
        print(f"stopped after {known} of {len(chosen)} mutants", file=sys.stderr)
    for k, mutant in sorted(lived, key=lambda pair: pair[0]):
        print("\n" + shown(k, mutant, root), end="")
    print(f"\n{options.room}, seed {options.seed}: {known - len(lived)} of {known} mutants killed")
    return int(bool(lived) or known < len(chosen))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the copy goes, as with Ctrl-C
    sys.exit(main())
