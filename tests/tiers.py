"""Choose the tiers from measured durations: ``python -m tests.tiers LOG [--seconds 390]``.

LOG is the output of ``pytest -m "not slow" --durations=0 --durations-min=0.05``. Slow functions
stay slow, as long as they exist. Others join them, the longest first, until what is left takes
``--seconds``, all processes together. The quick tier has
the first case of every function in files without slow ones; the longest of these are left out of
it, too, until it takes ``--quick`` seconds. Nothing is deleted: ``pytest -m slow``, ``-m quick``
and ``-m "not slow"`` run them.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from tests.conftest import LONGER, ROOT, SLOW

LINE = re.compile(r"^\s*([\d.]+)s (?:call|setup|teardown) +(\S+?::[^\s\[]+)(.*)")


def durations(log: str) -> tuple[Counter[str], Counter[str]]:
    """Seconds of each test function: all of its cases together, and a case on average."""
    total, cases = Counter[str](), defaultdict[str, set[str]](set)
    for line in log.splitlines():
        if match := LINE.match(line):
            total[match[2]] += float(match[1])
            cases[match[2]].add(match[3])
    return total, Counter({name: total[name] / len(of) for name, of in cases.items()})


def longest(seconds: Counter[str], limit: float) -> list[str]:
    """The functions, the longest first, without which the others take at most `limit` seconds."""
    rest, found = seconds.total(), []
    for name, value in seconds.most_common():
        if rest <= limit:
            break
        found.append(name)
        rest -= value
    return found


def exists(name: str) -> bool:
    """Whether the file of `name` still defines the test, or what the doctest is an example of."""
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    return test.rpartition(".")[2] in _defined(ROOT / path)


@cache
def _defined(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {x.name for x in nodes if isinstance(x, (ast.FunctionDef, ast.ClassDef))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seconds", type=float, default=390)
    parser.add_argument("--quick", type=float, default=110)
    options = parser.parse_args()
    total, one_case = durations(options.log.read_text())
    before = [name for name in SLOW.read_text().split() if exists(name)]
    total = Counter({name: total[name] for name in total if exists(name) and name not in before})
    slow = [*before, *longest(total, options.seconds)]
    files = {name.partition("::")[0] for name in slow}
    one_case = Counter({k: one_case[k] for k in total if k.partition("::")[0] not in files})
    longer = longest(one_case, options.quick)
    SLOW.write_text("\n".join(slow) + "\n")
    LONGER.write_text("".join(f"{name}\n" for name in sorted(longer)))
    left = len(one_case) - len(longer)
    print(f"{len(slow)} functions are slow, {left} of the {len(total)} in the log quick")


if __name__ == "__main__":
    main()
