"""Every number of a portion that was run again, beside the recorded one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.confirm.portions import Portion

TOLERANCE, FLOOR = 1e-4, 1e-2
"""Relative difference of equal numbers; those below the floor are compared as if they were it."""
ELSEWHERE = ("environment", "confirmed", "rows", "protocol", "size", "settings", "commits",
             "comparisons", "tuned")  # fmt: skip
"""Parts of a record that are no numbers of a row: facts, and what is computed from its rows."""
IGNORED = ("cost", "measuring", "peak_mb", "curves", "pictures", "tuned")


@dataclass
class Differences:
    """What was compared.

    Parameters
    ----------
    numbers : int
        How many.
    largest : float
        Largest relative difference.
    moved : list of str
        A line for each number that is not equal, and for each that only one side has.
    """

    numbers: int = 0
    largest: float = 0.0
    moved: list[str] = field(default_factory=list)

    def walk(self, path: str, old: Any, new: Any) -> None:
        """Compare what two JSON values hold."""
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names = [name for name in {**old, **new} if not _ignored(name)]
            for name in names:
                if name not in old or name not in new:
                    side = "the record" if name in old else "the present code"
                    self.moved.append(f"{path}: {name} is only in {side}")
                else:
                    self.walk(f"{path}: {name}", old[name], new[name])
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            for place, (one, other) in enumerate(zip(old, new, strict=True)):
                self.walk(f"{path} [{place}]", one, other)
        elif _is_number(old) and _is_number(new):
            self._numbers(path, float(old), float(new))
        elif old != new:
            self.moved.append(f"{path}: {_short(old)} -> {_short(new)}")

    def _numbers(self, path: str, old: float, new: float) -> None:
        self.numbers += 1
        if old == new or (math.isnan(old) and math.isnan(new)):
            return
        apart = abs(old - new) / max(abs(old), abs(new), FLOOR)
        if not math.isfinite(apart):
            apart = math.inf
        self.largest = max(self.largest, apart)
        if apart > TOLERANCE:
            self.moved.append(f"{path}: {old:.6g} -> {new:.6g} ({apart:.1e} of it)")


def differences(
    portion: Portion, record: Mapping[str, Any], again: Mapping[str, Any]
) -> Differences:
    """Return what differs between a record and the portion of it that was run again.

    Examples
    --------
    >>> old = {"rows": [{"seed": 0, "right": 0.5, "seconds": 3}, {"seed": 1, "right": 0.6}]}
    >>> new = {"rows": [{"seed": 0, "right": 0.51, "seconds": 4}]}
    >>> differences(Portion(("seed",), {"seed": None}), old, new).moved
    ['seed 0: right: 0.5 -> 0.51 (2.0e-02 of it)']
    """
    found = Differences()
    wanted, rows = (portion.named(portion.rows(of, record)) for of in (record, again))
    for name in {**wanted, **rows}:
        if name not in rows or name not in wanted:
            side = "the record" if name in wanted else "the present code"
            found.moved.append(f"{name} is only in {side}")
    for name, row in wanted.items():
        if name in rows:
            found.walk(name, row, rows[name])
    others = [{k: v for k, v in of.items() if k not in ELSEWHERE} for of in (record, again)]
    found.walk("beside the rows", *others)
    return found


def _ignored(name: str) -> bool:
    return name in IGNORED or "seconds" in name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
