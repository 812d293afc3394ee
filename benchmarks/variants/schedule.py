"""Online Laplace by a schedule, against the post-hoc fit, at Z = 64: FashionMNIST and birds.

    python -m benchmarks variants --pieces schedule --data DIR --cache DIR

The tasks, networks, batches and settings of ``python -m benchmarks lam`` (30 rounds of 20 batches
or more), but birds at 96 pixels in place of 224. Every line has the same first 20 rounds of plain
training. The last ten are plain, or draw four heads a step under a prior precision of 100 (the
default of ``OnlineLaplace``), or do so until the last round, in which the prior falls by equal
factors to 1, that of a post-hoc fit. Nothing was chosen: this is one setting, asked once, of test
images. ``prior 1 at the end``: the curvature of the training with the prior of a post-hoc fit in
place of its own. ``post hoc``: ``LaplaceEmbedder`` with its defaults, and with a diagonal, clipped
at zero, as online, on the trained network.
"""

from __future__ import annotations

import copy
import math
import warnings
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from baselines import MetricLearning, Training
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import DECAY, Fitting, Schedule
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.methods import BASE, METHODS
from benchmarks.protocols.closed_set import lam
from benchmarks.records import RESULTS, Store, markdown, read_record, thousandths, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Workspace, build
from benchmarks.variants.defaults import with_prior
from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.online._online_run import OnlineRun
from laplace_metric.training import train_embedder, train_mode

TASKS = {"fashion-mnist": "FashionMNIST", "cub-96": "birds"}
CHOSEN_ON = {"cub-96": "cub"}
SEEDS, PLAIN_ROUNDS, LAST_ROUNDS = (0, 1, 2), 20, 10
HIGH, LOW = 100.0, 1.0
METRICS = ("recall@1", "r_auroc", "ausc", "ece", "ood auroc")
DIAGONAL: dict[str, Any] = {"structure": "diag", "positivity": "clip"}
POST_HOC: tuple[tuple[str, dict[str, Any]], ...] = (("", {}), (", diagonal", DIAGONAL))


class AnnealedRun(OnlineRun):
    """An online training whose prior falls to that of a post-hoc fit in the last epoch."""

    def step(self, inputs: ModelInput, labels: Tensor) -> float:
        """Set the prior of this step, and take it."""
        assert self.n_batches is not None
        done = self.progress.steps - (LAST_ROUNDS - 1) * self.n_batches
        share = min(max((done + 1) / self.n_batches, 0.0), 1.0)
        self.prior_precision = HIGH * (LOW / HIGH) ** share
        return super().step(inputs, labels)


def settings_of(task: str) -> dict[str, float]:
    """Margin and learning rate that were chosen for plain training, on validation items."""
    rows = read_record("lam", RESULTS / "small")["rows"]
    found: dict[str, float] = next(
        row["settings"]
        for row in rows
        if (row["task"], row["method"]) == (CHOSEN_ON.get(task, task), BASE)
    )
    return found


def trained(fitting: Fitting, kind: str, start: nn.Module) -> tuple[nn.Module, Any]:
    """A network after its last ten rounds, and the posterior of an online training."""
    settings, task = settings_of(fitting.task.name), fitting.task
    network = copy.deepcopy(start)
    loader = Schedule(task.train, fitting.seed + len(SEEDS), task.per_class)
    loss = ContrastiveLoss(neg_margin=settings["margin"])
    fall = DECAY / fitting.rounds
    rate = settings["learning_rate"] * math.exp(-fall * PLAIN_ROUNDS)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-fall))
    device = next(network.parameters()).device
    if kind == "plain":
        train_embedder(
            network, loader, loss, epochs=LAST_ROUNDS, optimizer=optimizer, scheduler=scheduler,
            progress=False,
        )  # fmt: skip
        return network, None
    online = OnlineLaplace(network, prior_precision=HIGH)
    run_of = AnnealedRun if kind == "annealed" else OnlineRun
    with own_randomness(fitting.seed, device) as generator, train_mode([network]):
        run = run_of(
            network, None, online.settings, online.steps, loader, loss, optimizer, scheduler,
            generator, None,
        )  # fmt: skip
        run.train(LAST_ROUNDS, show=False)
    return network, run.result()


def lines(fitting: Fitting) -> Iterator[tuple[str, LaplaceEmbedder]]:
    """Every posterior of one task and seed."""
    settings = settings_of(fitting.task.name)
    training = Training(
        epochs=PLAIN_ROUNDS,
        learning_rate=settings["learning_rate"],
        decay=DECAY / fitting.rounds,
        seed=fitting.seed,
    )
    loss = ContrastiveLoss(neg_margin=settings["margin"])
    learner = MetricLearning(fitting.network(), loss=loss, training=training)
    loaders = fitting.loaders()
    start = learner.fit(loaders.training, progress=False).model
    for kind in ("plain", "online", "annealed"):
        network, posterior = trained(fitting, kind, start)
        network.eval()
        if posterior is not None:
            yield kind, posterior
        if kind == "online":
            yield "online, prior 1 at the end", with_prior(posterior, LOW)
        for name, how in POST_HOC:
            embedder = LaplaceEmbedder(network, **how)
            yield f"{kind}, post hoc{name}", embedder.fit(loaders.gathered, progress=False)


def measured(embedder: LaplaceEmbedder, fitting: Fitting) -> dict[str, float]:
    """The numbers of ``lam`` on test items, and the mean AUROC over the OOD sets."""
    # no curves, which seed 0 alone would add
    asked = Experiment(METHODS["laplace"], embedder, fitting.task, fitting.space, seed=1)
    metrics = {name: cell["value"] for name, cell in lam(asked).to_json()["metrics"].items()}
    ood = [value for name, value in metrics.items() if name.startswith("auroc ")]
    return {**metrics, "ood auroc": sum(ood) / len(ood)}


def table() -> str:
    """Mean ± standard error over the seeds; the last rows are paired differences."""
    found = read_record("online_schedule")["rows"]
    out = []
    for task, title in TASKS.items():
        own = [row for row in found if row["task"] == task]
        names = dict.fromkeys(row["line"] for row in own)
        of = {name: [row for row in own if row["line"] == name] for name in names}
        out += [[f"{title}: {name}", *(cell([r[m] for r in of[name]]) for m in METRICS)]
                for name in names]  # fmt: skip
        for name, base in PAIRS:
            both = list(zip(of[name], of[base], strict=True))
            cells = [cell([a[m] - b[m] for a, b in both]) for m in METRICS]
            out.append([f"{title}: {name}, less {base}", *cells])
    return markdown(["test items, three seeds", *METRICS], out)


PAIRS = (
    ("annealed", "plain, post hoc, diagonal"),
    ("online, prior 1 at the end", "plain, post hoc, diagonal"),
    ("annealed, post hoc", "plain, post hoc"),
    ("online, post hoc", "plain, post hoc"),
)


def cell(values: list[float]) -> str:
    """Mean ± standard error."""
    summary = mean_and_standard_error(values)
    return f"{thousandths(summary.mean)} ± {thousandths(summary.standard_error)}"


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``online_schedule.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)  # clipped curvature
    size = replace(SMALL, resamples=2)
    space = Workspace(options.data, options.cache, size, progress=False)
    store, rows = Store(options.cache / "online-schedule"), []
    for task in TASKS:
        for seed in options.seeds or SEEDS:
            if not store.has(task, seed):
                fitting = Fitting(space, build(task, space, seed), seed, size.rounds)
                of = {name: measured(embedder, fitting) for name, embedder in lines(fitting)}
                store.write({"lines": of}, task, seed)
            of = store.read(task, seed)["lines"]
            rows += [{"task": task, "seed": seed, "line": name, **row} for name, row in of.items()]
            print(task, seed, {name: round(row["ood auroc"], 3) for name, row in of.items()})
    print(write_record("online_schedule", {"rows": rows}).name)
