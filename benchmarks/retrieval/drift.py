"""How often a drift monitor errs, and how soon it tells: ``python -m benchmarks.retrieval.drift``.

    python -m benchmarks.retrieval.drift --data DIR --cache DIR [--budget smoke|full]

Quiet streams, simulated (normal, lognormal, ties; the reference is new for each) and real (random
halves of FashionMNIST's test images, without overlap): share of streams that ever raise an alarm,
share of windows that are said to have moved. Drifting streams: quiet queries, then a share of
KMNIST, MNIST, noisy or blurred images; queries until the alarm. Writes ``results/drift.json`` and
``figures/drift.png``; a smoke run writes to the cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from benchmarks.records import RESULTS, write_record
from benchmarks.report.figures import FIGURES, save
from benchmarks.retrieval.queries import CHANGES, NAMES, Numbers, numbers
from laplace_metric.monitor import Monitor, p_value

NAME = "drift"
Row = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """Numbers of streams, and how long they are."""

    size: str = "small"
    test: int = 10_000
    simulated: int = 700
    reference: int = 1_000
    stream: int = 2_000
    window: int = 500
    splits: int = 250
    quiet: int = 1_000
    repeats: int = 20
    windows: int = 200
    rates: tuple[float, ...] = (0.01, 0.1)
    shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)


BUDGETS = {
    "full": Budget(),
    "smoke": Budget("smoke", 600, 3, 120, 120, 40, 2, 40, 2, 3, (0.1,), (0.5,)),
}
LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "normal": lambda n, g: torch.randn(n, generator=g),
    "lognormal": lambda n, g: torch.randn(n, generator=g).mul(1.5).exp(),
    "ties (10 values)": lambda n, g: torch.rand(n, generator=g).square().mul(10).floor(),
}


def simulated(law: str, rate: float, budget: Budget) -> Row:
    """Quiet streams of one law; other draws for each, as only their order matters."""
    generator = torch.Generator().manual_seed(10 * list(LAWS).index(law) + budget.rates.index(rate))

    def run() -> Monitor:
        reference, stream = (LAWS[law](n, generator) for n in (budget.reference, budget.stream))
        return watched({"x": reference}, {"x": stream}, rate, budget)

    return quiet(law, rate, [run() for _ in range(budget.simulated)])


def split(known: Numbers, rate: float, budget: Budget) -> Row:
    """Quiet streams of real queries: halves of the same images, cut anew each time."""
    generator = torch.Generator().manual_seed(100 + budget.rates.index(rate))

    def run() -> Monitor:
        order = torch.randperm(budget.test, generator=generator)
        reference, stream = ({name: known[name][rows] for name in NAMES} for rows in order.chunk(2))
        return watched(reference, stream, rate, budget)

    return quiet("fashion-mnist", rate, [run() for _ in range(budget.splits)])


def watched(reference: Numbers, stream: Numbers, rate: float, budget: Budget) -> Monitor:
    """A monitor that has seen a whole stream."""
    monitor = Monitor(reference, window=budget.window, false_alarms=rate)
    monitor.update(stream)
    return monitor


def quiet(law: str, rate: float, monitors: Sequence[Monitor]) -> Row:
    """Rates of false alarms; windows of a stream share its reference, so streams are the unit."""
    alarms = sum(bool(monitor.alarms) for monitor in monitors)
    moved = np.array([np.mean([bool(r.drifted) for r in m.reports]) for m in monitors])
    interval = stats.binomtest(alarms, len(monitors)).proportion_ci(method="exact")
    return shown({
        "stream": law, "rate": rate, "streams": len(monitors), "alarms": alarms,
        "alarm_rate": alarms / len(monitors), "alarm_interval": [interval.low, interval.high],
        "moved": float(moved.mean()), "moved_error": float(moved.std() / len(moved) ** 0.5),
    })  # fmt: skip


def drifting(
    found: dict[str, Numbers], change: str, share: float, seed: int, budget: Budget
) -> Monitor:
    """Quiet queries, then a share of changed ones."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(budget.test, generator=generator)
    rows, half = order[budget.test // 2 :], budget.test // 2
    strange = torch.rand(len(rows), generator=generator) < share
    strange[: budget.quiet] = False
    known, new = found["fashion-mnist"], found[change]
    stream = {name: torch.where(strange, new[name][rows], known[name][rows]) for name in NAMES}
    return watched({name: known[name][order[:half]] for name in NAMES}, stream, 0.01, budget)


def delays(found: dict[str, Numbers], change: str, share: float, budget: Budget) -> Row:
    """Queries from the change to the alarm, and to the end of the first window that moved."""
    monitors = [drifting(found, change, share, seed, budget) for seed in range(budget.repeats)]
    alarms = [m.alarms[0] if m.alarms else None for m in monitors]
    late = [a for a in alarms if a is not None and a.at > budget.quiet]
    windows = [
        next((r.last for r in m.reports if r.first > budget.quiet and r.drifted), None)
        for m in monitors
    ]
    return shown({
        "change": change, "share": share, "streams": len(monitors), "alarms": len(late),
        "early": sum(a is not None and a.at <= budget.quiet for a in alarms),
        "delay": middle([a.at - budget.quiet for a in late], len(monitors)),
        "since_error": middle([abs(a.since - budget.quiet - 1) for a in late], len(late)),
        "window_delay": middle([w - budget.quiet for w in windows if w], len(monitors)),
    })  # fmt: skip


def middle(values: Sequence[int], of: int) -> float | None:
    """The median of ``of`` values, of which those that are missing are the largest.

    Examples
    --------
    >>> middle([30, 10, 20], 3), middle([10], 3)
    (20.0, None)
    """
    full = [*sorted(map(float, values)), *[np.inf] * (of - len(values))]
    found = float(np.median(full)) if full else np.inf
    return found if np.isfinite(found) else None


def power(found: dict[str, Numbers], change: str, share: float, budget: Budget) -> Row:
    """Windows that are told at level 0.01 by the three tests, and by Kolmogorov-Smirnov alone."""
    known, new = (found[name][NAMES[0]].double().numpy() for name in ("fashion-mnist", change))
    random, half = np.random.default_rng(0), budget.test // 2
    told = []
    for _ in range(budget.windows):
        order = random.permutation(budget.test)
        rows = order[half : half + budget.window]
        window = np.where(random.random(len(rows)) < share, new[rows], known[rows])
        alone = stats.ks_2samp(known[order[:half]], window, method="asymp").pvalue
        told.append((p_value(known[order[:half]], window) <= 0.01, alone <= 0.01))
    three, one = np.mean(told, axis=0)
    return shown({"change": change, "share": share, "three": float(three), "alone": float(one)})


def shown(row: Row) -> Row:
    """Print it; returns it."""
    print(row, flush=True)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--cache", required=True, type=Path, help="the trained network")
    parser.add_argument("--budget", choices=BUDGETS, default="full")
    parser.add_argument("--output", type=Path, help="folder of the JSON and the picture")
    options = parser.parse_args(arguments)
    budget = BUDGETS[options.budget]
    found = numbers(options.data, options.cache, budget.size, budget.test)
    known, cases = found["fashion-mnist"], [(c, s) for c in CHANGES for s in budget.shares]
    content = {
        "budget": {"name": options.budget, **asdict(budget)},
        "quiet": [simulated(law, rate, budget) for law in LAWS for rate in budget.rates]
        + [split(known, rate, budget) for rate in budget.rates],
        "delays": [delays(found, *case, budget) for case in cases],
        "power": [power(found, *case, budget) for case in cases],
    }
    kept = options.output is None and options.budget == "full"
    folder, figures = (RESULTS, FIGURES) if kept else (options.output or options.cache,) * 2
    print(write_record(NAME, content, folder).name)
    save(drifting(found, "kmnist", 0.1, 0, budget).plot(), figures / f"{NAME}.png")


if __name__ == "__main__":
    main()
