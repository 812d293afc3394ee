"""How often a drift monitor errs, and how soon it tells.

    python -m benchmarks retrieval --pieces drift --data DIR --cache DIR [--size smoke]

Queries are numbers: the uncertainty and the match probability of FashionMNIST and what replaces it.
The embedder is the network that metric learning trains in protocol 1 (Z = 64, read from its cache
or trained), with the default Laplace posterior of 10,000 training images, which are the gallery
too; the match probability is that of the nearest item, calibrated on the protocol's validation
images. Nothing here has seen a test image.

Quiet streams, simulated (normal, lognormal, ties; the reference is new for each) and real (random
halves of FashionMNIST's test images, without overlap): share of streams that ever raise an alarm,
share of windows that are said to have moved. Drifting streams: quiet queries, then a share of
KMNIST, MNIST, noisy or blurred images; queries until the alarm. Writes ``results/drift.json`` and
``figures/drift.png`` (``drift_figure``); a smoke run writes to the cache.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.engine.fitting import Fitting
from benchmarks.records import folder_of, write_record
from benchmarks.retrieval.drift_figure import NAME, Row, run_stream
from benchmarks.sizes import DRIFT, SIZES, StreamSize
from benchmarks.tasks import Workspace
from benchmarks.tasks.grey import fashion
from laplace_metric import LaplaceEmbedder
from laplace_metric.monitor import Monitor
from laplace_metric.monitor._window_tests import p_value
from laplace_metric.search import Index

NAMES = ("uncertainty", "match probability")
BATCH = 250
SETTINGS = {"margin": 0.5080732227877204, "learning_rate": 0.0023382678345482836}
"""Chosen on validation images by protocol 1."""

Numbers = dict[str, Tensor]
"""Of each name one number a query [N]."""


def noisy(x: Tensor) -> Tensor:
    """Gaussian noise of standard deviation 0.1 on pixels in [0, 1]."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return (x + 0.1 * noise).clamp(0, 1)


def blurred(x: Tensor) -> Tensor:
    """The mean of 3x3 pixels."""
    return nn.functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


CHANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "kmnist": ("kmnist", lambda x: x),
    "mnist": ("mnist", lambda x: x),
    "noise": ("fashion-mnist", noisy),
    "blur": ("fashion-mnist", blurred),
}
"""Name of a drift -> the test set that its queries come from, and what is done to them."""


def numbers(data: str | None, cache: Path, size: str, n_test: int) -> dict[str, Numbers]:
    """Both numbers of ``n_test`` test images: as they are ("fashion-mnist"), and of each change."""
    space = Workspace(data, cache, SIZES[size], progress=False)
    fitting = Fitting(space, fashion(space), seed=0, rounds=space.size.rounds)
    embedder = LaplaceEmbedder(fitting.trained_network(SETTINGS))
    gallery = fitting.loaders().gathered
    index = embedder.fit(gallery, progress=False).index(gallery, progress=False)
    index.calibrate(fitting.task.validation.loader(BATCH))
    found = {}
    for name, (dataset, change) in {"fashion-mnist": CHANGES["noise"], **CHANGES}.items():
        x = load(dataset, "test", data, n_test).pixels(slice(None))
        x = x if name == "fashion-mnist" else change(x)
        found[name] = _numbers(index, x)
    return found


def _numbers(index: Index, x: Tensor) -> Numbers:
    found = index.search(x.split(BATCH), k=1)
    assert found.match_probability is not None
    return dict(zip(NAMES, (found.uncertainty, found.match_probability[:, 0]), strict=True))


LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "normal": lambda n, g: torch.randn(n, generator=g),
    "lognormal": lambda n, g: torch.randn(n, generator=g).mul(1.5).exp(),
    "ties (10 values)": lambda n, g: torch.rand(n, generator=g).square().mul(10).floor(),
}


def simulated(law: str, rate: float, size: StreamSize) -> Row:
    """Quiet streams of one law; other draws for each, as only their order matters."""
    generator = torch.Generator().manual_seed(10 * list(LAWS).index(law) + size.rates.index(rate))

    def run() -> Monitor:
        reference, stream = (LAWS[law](n, generator) for n in (size.reference, size.stream))
        return watched({"x": reference}, {"x": stream}, rate, size)

    return quiet(law, rate, [run() for _ in range(size.simulated)])


def split(known: Numbers, rate: float, size: StreamSize) -> Row:
    """Quiet streams of real queries: halves of the same images, cut anew each time."""
    generator = torch.Generator().manual_seed(100 + size.rates.index(rate))

    def run() -> Monitor:
        order = torch.randperm(size.test, generator=generator)
        reference, stream = ({name: known[name][rows] for name in NAMES} for rows in order.chunk(2))
        return watched(reference, stream, rate, size)

    return quiet("fashion-mnist", rate, [run() for _ in range(size.splits)])


def watched(reference: Numbers, stream: Numbers, rate: float, size: StreamSize) -> Monitor:
    """A monitor that has seen a whole stream."""
    monitor = Monitor(reference, window=size.window, false_alarms=rate)
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
    streams: dict[str, Numbers], change: str, share: float, seed: int, size: StreamSize
) -> Monitor:
    """Quiet queries, then a share of changed ones."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(size.test, generator=generator)
    rows, half = order[size.test // 2 :], size.test // 2
    ood = torch.rand(len(rows), generator=generator) < share
    ood[: size.quiet] = False
    known, new = streams["fashion-mnist"], streams[change]
    stream = {name: torch.where(ood, new[name][rows], known[name][rows]) for name in NAMES}
    return watched({name: known[name][order[:half]] for name in NAMES}, stream, 0.01, size)


def delays(streams: dict[str, Numbers], change: str, share: float, size: StreamSize) -> Row:
    """Queries from the change to the alarm, and to the end of the first window that moved."""
    monitors = [drifting(streams, change, share, seed, size) for seed in range(size.repeats)]
    alarms = [m.alarms[0] if m.alarms else None for m in monitors]
    late = [a for a in alarms if a is not None and a.at > size.quiet]
    windows = [
        next((r.last for r in m.reports if r.first > size.quiet and r.drifted), None)
        for m in monitors
    ]
    return shown({
        "change": change, "share": share, "streams": len(monitors), "alarms": len(late),
        "early": sum(a is not None and a.at <= size.quiet for a in alarms),
        "delay": middle([a.at - size.quiet for a in late], len(monitors)),
        "since_error": middle([abs(a.since - size.quiet - 1) for a in late], len(late)),
        "window_delay": middle([w - size.quiet for w in windows if w], len(monitors)),
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


def power(streams: dict[str, Numbers], change: str, share: float, size: StreamSize) -> Row:
    """Windows that are told at level 0.01 by the three tests, and by Kolmogorov-Smirnov alone."""
    known, new = (streams[name][NAMES[0]].double().numpy() for name in ("fashion-mnist", change))
    random, half = np.random.default_rng(0), size.test // 2
    told = []
    for _ in range(size.windows):
        order = random.permutation(size.test)
        rows = order[half : half + size.window]
        window = np.where(random.random(len(rows)) < share, new[rows], known[rows])
        alone = stats.ks_2samp(known[order[:half]], window, method="asymp").pvalue
        told.append((p_value(known[order[:half]], window) <= 0.01, alone <= 0.01))
    three, one = np.mean(told, axis=0)
    return shown({"change": change, "share": share, "three": float(three), "alone": float(one)})


def shown(row: Row) -> Row:
    """Print it; returns it."""
    print(row, flush=True)
    return row


def example(streams: dict[str, Numbers], size: StreamSize) -> Row:
    """One stream, all that its figure shows."""
    monitor = drifting(streams, "kmnist", 0.1, 0, size)
    return {
        "change": "kmnist", "share": 0.1, "after": size.quiet, "level": monitor.alarm_level,
        "alarms": [asdict(alarm) for alarm in monitor.alarms],
        "reports": [asdict(report) for report in monitor.reports],
    }  # fmt: skip


def run(options: Namespace) -> None:
    """Quiet and drifting streams; one of them as a figure."""
    size = DRIFT[options.size]
    streams = numbers(options.data, options.cache, size.size, size.test)
    known, cases = streams["fashion-mnist"], [(c, s) for c in CHANGES for s in size.shares]
    content = {
        "budget": {"name": options.size, **asdict(size)},
        "quiet": [simulated(law, rate, size) for law in LAWS for rate in size.rates]
        + [split(known, rate, size) for rate in size.rates],
        "delays": [delays(streams, *case, size) for case in cases],
        "power": [power(streams, *case, size) for case in cases],
        "example": example(streams, size),
    }
    print(write_record(NAME, content, folder_of(options)).name)
    run_stream(options)
