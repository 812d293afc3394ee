"""Makes the calls one after the other, each decided by the seed and its number."""

from __future__ import annotations

import json
import random
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hostile import outcomes
from tests.hostile.commands import COMMANDS, command
from tests.hostile.kinds import KINDS
from tests.hostile.operations import OPERATIONS
from tests.hostile.outcomes import CLASSES, Outcome

SECONDS = 10.0
"""A call that computes longer is endless, and one that waits six times as long."""
SHARE_OF_COMMANDS, SHARE_OF_UNKNOWN = 0.04, 0.02


DEGENERATE = {
    *("nan", "infinity", "minus_infinity", "all_nan", "negative", "huge", "beyond_float32", "half"),
    *(
        "returns infinite",
        "returns infinity",
        "returns nan",
        "returns nan_row",
        "tiny",
        "subnormal",
    ),
    *("zeros", "zero_row"),
}
"""Variants that hold NaN or infinity, or numbers that leave their range when squared."""


@dataclass(frozen=True)
class Made:
    """One call and how it ended."""

    number: int
    call: str
    outcome: Outcome


def attack(calls: int, seed: int) -> Iterator[Made]:
    """The calls 0, 1, ... of a seed."""
    for number in range(calls):
        yield one(number, seed)


def one(number: int, seed: int) -> Made:
    """The call of that number."""
    rng = random.Random(f"{seed}:{number}")
    torch.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    if rng.random() < SHARE_OF_COMMANDS:
        return Made(number, *_one_command(rng))
    return Made(number, *_one_call(rng))


def _one_call(rng: random.Random) -> tuple[str, Outcome]:
    chosen = rng.choices(OPERATIONS, [o.weight for o in OPERATIONS])[0]
    names = list(chosen.arguments)
    bad = rng.sample(names, min(len(names), rng.choice([0, 1, 1, 1, 1, 2])))
    values, words, same = {}, [], True
    for name in names:
        value = chosen.good(name)
        if name in bad:
            variant = rng.choice(KINDS[chosen.arguments[name][0]])
            words.append(f"{name}={variant.name}")
            same &= variant.same
            try:
                value = variant.make(value, rng)
            except Exception:  # this kind of value has no such form
                words[-1] += " (impossible)"
        values[name] = value
    if rng.random() < SHARE_OF_UNKNOWN:
        values[outcomes.UNKNOWN], same = 1, False
        words.append(f"{outcomes.UNKNOWN}=1")
    call = f"{chosen.name}({', '.join(words)})"
    function = chosen.target()
    passed_on = any(word.partition("=")[2] in DEGENERATE for word in words)
    outcome, result = guarded(call, lambda: chosen.call(function, values), passed_on)
    if outcome.kind == outcomes.RIGHT and same and chosen.deterministic:
        expected = _plain_result(chosen.name)
        if outcomes.differs(result, expected):
            outcome = Outcome(outcomes.WRONG, call)
    return call, outcome


@cache
def _plain_result(name: str) -> Any:
    chosen = next(operation for operation in OPERATIONS if operation.name == name)
    return chosen.call(chosen.target(), {key: chosen.good(key) for key in chosen.arguments})


def _one_command(rng: random.Random) -> tuple[str, Outcome]:
    arguments = COMMANDS.make(None, rng)
    call = "laplace-metric " + " ".join(a.rsplit("/", 1)[-1] or "''" for a in arguments)
    run = command()
    outcome, result = guarded(call, lambda: run(*arguments))
    if outcome.kind == outcomes.RIGHT and result.code != 0:
        known = result.code in (2, 130) and "error:" in result.error
        kind = outcomes.NAMED if known else outcomes.CRASH
        outcome = Outcome(kind, f"exit code {result.code}", result.error[-200:])
    return call, outcome


def guarded(call: str, function: Any, passed_on: bool = False) -> tuple[Outcome, Any]:
    """The outcome of a function without arguments, and what it returned."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with time_limit(SECONDS):
                result = function()
                return outcomes.of_result(call.split("(")[0], result, warned, passed_on), result
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return outcomes.of_error(error), None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``Endless`` after so many seconds of computing, or six times as many in all."""
    clocks = (
        (signal.SIGVTALRM, signal.ITIMER_VIRTUAL, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 6 * seconds),
    )
    before = [signal.signal(number, _ring) for number, _, _ in clocks]
    try:
        _armed.append(True)
        for _, clock, limit in clocks:
            signal.setitimer(clock, limit, 1.0)
        yield
    finally:
        _armed.pop()  # a signal that is on its way finds nothing to end
        for (number, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def _ring(*_: object) -> None:
    if _armed:
        raise outcomes.Endless


_armed: list[bool] = []
"""Limits that hold now."""


KNOWN = Path(__file__).with_name("known_places.json")
"""Places that are still to be mended; the list may only become shorter."""


def known() -> set[str]:
    """Keys of the places that are known."""
    return set(json.loads(KNOWN.read_text())) if KNOWN.exists() else set()


def keys(table: dict[str, Any]) -> set[str]:
    """Class and place of everything bad, without line numbers."""
    return {f"{entry['kind']}: {entry['place']}" for entry in table["places"]}


def summary(made: list[Made]) -> dict[str, Any]:
    """Calls by class, and every bad place with its count and first example."""
    counts = Counter(m.outcome.kind for m in made)
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for m in made:
        if m.outcome.kind in outcomes.BAD:
            key = m.outcome.kind, m.outcome.place
            entry = places.setdefault(
                key,
                {
                    "kind": m.outcome.kind,
                    "place": m.outcome.place,
                    "line": m.outcome.line,
                    "calls": 0,
                    "first": m.number,
                    "example": m.call,
                    "error": m.outcome.detail,
                },
            )
            entry["calls"] += 1
    return {
        "calls": len(made),
        "distinct": len({m.call for m in made}),
        "classes": {name: counts[name] for name in CLASSES},
        "places": sorted(places.values(), key=lambda entry: (-entry["calls"], entry["place"])),
    }
