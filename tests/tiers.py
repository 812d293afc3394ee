"""Choose the tiers from measured durations: ``python -m tests.tiers LOG [--seconds 240]``.

LOG is the output of ``pytest --durations=0 --durations-min=0.05``. Functions go to the slow tier,
the longest first, until the others take ``--seconds``, all processes together. The quick tier has
the first case of every function in files without slow ones; the longest of these are left out of
it, too, until it takes ``--quick`` seconds. Nothing is deleted: ``pytest -m slow``, ``-m quick``
and ``-m "not slow"`` run them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.conftest import LONGER, SLOW

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--quick", type=float, default=110)
    options = parser.parse_args()
    total, one_case = durations(options.log.read_text())
    slow = longest(total, options.seconds)
    files = {name.partition("::")[0] for name in slow}
    one_case = Counter({k: v for k, v in one_case.items() if k.partition("::")[0] not in files})
    longer = longest(one_case, options.quick)
    SLOW.write_text("\n".join(slow) + "\n")
    LONGER.write_text("".join(f"{name}\n" for name in sorted(longer)))
    left = len(one_case) - len(longer)
    print(f"{len(slow)} of {len(total)} functions are slow, {left} of those in the log quick")


if __name__ == "__main__":
    main()
