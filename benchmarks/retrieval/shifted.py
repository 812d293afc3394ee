"""More open-set queries than the calibration had: ``--pieces shifted``.

Worlds of ``decisions`` with 30 % of open-set queries; those that come later have 10 % or 50 %, or
differ in more than that: open-set queries whose scores are higher by one standard deviation, or
right hits whose scores are lower by one. A precision of 80 % is guaranteed as if nothing had moved,
for the share that is known, and for the share that 500 new queries without judgements give. The
true precision of every rule is known.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.records import folder_of, markdown, read_record, write_record
from benchmarks.retrieval.decisions import World, interval
from laplace_metric.calibration import ScoreCalibration, calibrate_scores
from laplace_metric.errors import InputError

RUNS, SIZES, NEW, TARGET, NEAR = 500, (400, 1_000), 500, 0.8, 0.02
WORLDS = (
    World("apart", 0.3, 0.1, 3.0),
    World("close", 0.3, 0.1, 2.0),
    World("ties", 0.3, 0.1, 3.0, tied=True),
)
WAYS = ("not corrected", "share known", "share estimated")


@dataclass(frozen=True)
class Moved:
    """What comes later: ``open`` open-set queries, whose scores are higher by ``nearer``."""

    name: str
    open: float
    nearer: float = 0.0
    farther: float = 0.0

    def of(self, world: World) -> World:
        """Return the world that new queries come from, but for ``nearer``."""
        return replace(world, open=self.open, gap=world.gap - self.farther)

    def scores(self, world: World, g: np.random.Generator) -> Any:
        """Scores [NEW, 1] of new queries."""
        score, _, mated = self.of(world).draw(g, NEW)
        return score + self.nearer * ~mated[:, None]


MOVES = (
    Moved("10 % open-set", 0.1),
    Moved("50 % open-set", 0.5),
    Moved("50 %, nearer", 0.5, nearer=1.0),
    Moved("50 %, matches farther", 0.5, farther=1.0),
)


def simulated(world: World, moved: Moved, n: int, runs: int) -> dict[str, Any]:
    """How often each rule was given and broken, and how often the test refused."""
    given, broken, far = (dict.fromkeys(WAYS, 0) for _ in range(3))
    refused, shares = 0, []
    for run in range(runs):
        g = np.random.default_rng([n, run])
        score, right, mated = world.draw(g, n)
        calibration = calibrate_scores(score, right, mated=mated, cross_fit=0, seed=run)
        share = calibration.open_set_fraction(moved.scores(world, g))
        refused += share.p_value < 0.01
        shares.append(share.estimate)
        for way, fraction in zip(WAYS, (None, moved.open, share), strict=True):
            true = precision(calibration, moved, world, fraction)
            given[way] += true is not None
            broken[way] += true is not None and true < TARGET - 1e-12
            far[way] += true is not None and true < TARGET - NEAR
    row = {
        "world": world.name,
        "moved": moved.name,
        "n": n,
        "runs": runs,
        "refused": refused / runs,
    }
    row |= {"share": float(np.mean(shares)), "sd": float(np.std(shares))}
    for way in WAYS:
        found = {"given": given[way] / runs, **interval(broken[way], runs)}
        row[way] = {**found, "broken by more than 2 %": far[way] / runs}
    return row


def precision(
    calibration: ScoreCalibration, moved: Moved, world: World, fraction: Any
) -> float | None:
    """True precision of a rule among new queries; None where it is refused."""
    try:
        rule = calibration.guarantee(precision=TARGET, open_set_fraction=fraction)
    except InputError:
        return None
    later = moved.of(world)
    found = later.truth(rule)[0]
    if moved.nearer:  # the FPIR is that of scores as much higher
        start = replace(world, open=0.0, gap=moved.nearer).truth(rule)[0]["recall"]
        right = (1 - moved.open) * (1 - world.wrong) * found["recall"]
        wrong = (1 - moved.open) * world.wrong * found["fmr"]
        return right / max(right + wrong + moved.open * start, 1e-12)
    return found["precision"]


def run(options: Namespace) -> None:
    """Every world, move and size."""
    runs = 5 if options.size == "smoke" else RUNS
    rows = []
    for world in WORLDS:
        for moved in MOVES:
            rows += [simulated(world, moved, n, runs) for n in SIZES]
            print(rows[-1], flush=True)
            write_record("shifted", {"rows": rows}, folder_of(options))


def table() -> str:
    """Worst world of each move and size."""
    header, lines = ["what moved", "queries", "share found", "test refuses"], []
    for way in WAYS:
        header += [f"{way}: given", "broken, of 5 %"]
    rows = read_record("shifted")["rows"]
    for moved in MOVES:
        for n in SIZES:
            found = [row for row in rows if (row["moved"], row["n"]) == (moved.name, n)]
            refused = [row["refused"] for row in found]
            cells = [moved.name, f"{n:,}", f"{np.mean([row['share'] for row in found]):.1%}"]
            cells.append(f"{min(refused):.0%} to {max(refused):.0%}")
            for way in WAYS:
                made = [row[way]["given"] for row in found]
                worst = max((row[way] for row in found), key=lambda of: of["broken"])
                cells.append(f"{min(made):.0%} to {max(made):.0%}")
                cells.append(f"{worst['broken']:.1%} ({worst['low']:.1%} to {worst['high']:.1%})")
            lines.append(cells)
    return markdown(header, lines)


TABLES = {"retrieval-shifted": table}
