"""Choose the slow tier from measured durations: ``python -m tests.tiers LOG [--seconds 240]``.

LOG is the output of ``pytest --durations=0 --durations-min=0.05``. Functions go to the slow tier,
the longest first, until the others take ``--seconds``, all processes together. Nothing is deleted:
the slow tier runs with ``pytest -m slow``.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from tests.conftest import SLOW

LINE = re.compile(r"^\s*([\d.]+)s (?:call|setup|teardown) +(\S+?::[^\s\[]+)")


def durations(log: str) -> Counter[str]:
    """Seconds of each test function, all of its parameters together."""
    found = Counter[str]()
    for line in log.splitlines():
        if match := LINE.match(line):
            found[match[2]] += float(match[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    seconds = durations(options.log.read_text())
    rest, slow = seconds.total(), []
    for name, value in seconds.most_common():
        if rest <= options.seconds:
            break
        slow.append(name)
        rest -= value
    SLOW.write_text("\n".join(slow) + "\n")
    print(f"{len(slow)} of {len(seconds)} functions are slow; the others take {rest:.0f} s")


if __name__ == "__main__":
    main()
