"""MCInfoNCE on CIFAR-10H: which labels, which kappa, and a model chosen without labels.

    python -m benchmarks variants --pieces people --data DIR --cache DIR

Three folds of ``python -m benchmarks human``, at 64 pixels in place of 96. Labels are drawn from
what people said (``soft``) or what most of them said (``majority``); kappa is c |z| as in
Kirchhof et al. 2023a. Of each training two models are asked: the last one, and that of
the round whose crops of validation images are ranked best (their trick, which needs no label).
"""

from __future__ import annotations

import copy
import warnings
from argparse import Namespace
from dataclasses import replace
from typing import Any

import torch

from baselines import MCInfoNCE, Training
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import DECAY, Fitting
from benchmarks.engine.scores import Score
from benchmarks.methods import METHODS
from benchmarks.protocols.closed_set import human
from benchmarks.records import Store, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Task, Workspace, build
from benchmarks.tasks.frozen import shares
from benchmarks.variants.views import settings_of
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.training import Callback, Progress

METHOD = "mcinfonce"
LABELS, CONCENTRATION = ("soft", "majority"), "norm"
LAST, CHOSEN = "last round", "chosen by crops"
METRICS = ("entropy rank", "crop rank", "recall@1", "r_auroc")


class Best(Callback):
    """Keeps a copy of the method of the round whose validation crops are ranked best."""

    def __init__(self, method: MCInfoNCE, fitting: Fitting) -> None:
        self.method, self.fitting = method, fitting
        self.task = replace(fitting.task, test=fitting.task.validation)
        self.score, self.round = -2.0, 0

    def epoch_done(self, progress: Progress) -> None:
        """Ask the validation part."""
        with torch.random.fork_rng(devices=[]):  # an encoder that is built here draws its weights
            score = asked(self.method, self.fitting, self.task)["crop rank"]
        if score > self.score:
            self.score, self.round = score, progress.epoch
            learnt = self.method.model.state_dict(), self.method.parts.state_dict()
            self.kept = copy.deepcopy(learnt)


class Watched(MCInfoNCE):
    """MCInfoNCE that is asked after every round."""

    fitting: Fitting

    def callback(self) -> Best:
        """Is kept, to be read after the training."""
        self.best = Best(self, self.fitting)
        return self.best


def asked(method: MCInfoNCE, fitting: Fitting, task: Task) -> dict[str, float]:
    """What the protocol asks of the test part of ``task``."""
    space = replace(fitting.space, size=replace(fitting.space.size, resamples=1))
    # the second seed: without curves and pictures
    found = human(Experiment(METHODS[METHOD], method, task, space, 1)).scores
    scores = {name: found[name] for name in METRICS}
    return {name: s.value if isinstance(s, Score) else s for name, s in scores.items()}


def labelled(task: Task, labels: str) -> Task:
    """The task with these training labels."""
    if labels == "soft":
        return task
    most = shares(task.train).argmax(1)
    return replace(task, train=replace(task.train, soft=None, labels=most))


def measured(fitting: Fitting) -> dict[str, dict[str, float]]:
    """Both models of one training."""
    settings = settings_of(METHOD)
    training = Training(
        epochs=fitting.rounds,
        learning_rate=settings.pop("learning_rate"),
        decay=DECAY / fitting.rounds,
        seed=fitting.seed,
    )
    method = Watched(fitting.network(), training=training, concentration=CONCENTRATION, **settings)
    method.fitting = fitting
    method.fit(fitting.loaders().training, progress=False)
    rows = {LAST: asked(method, fitting, fitting.task)}
    for module, state in zip((method.model, method.parts), method.best.kept, strict=True):
        module.load_state_dict(state)
    chosen = asked(method, fitting, fitting.task)
    return {**rows, CHOSEN: {**chosen, "round": float(method.best.round)}}


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``people.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    size = replace(SMALL, side=64)
    space = Workspace(options.data, options.cache, size, progress=False)
    store, rows = Store(options.cache / "people"), []
    for labels in LABELS:
        for fold in options.seeds or range(SMALL.seeds):
            if not store.has(labels, fold):
                task = labelled(build("cifar10h-soft", space, fold), labels)
                store.write({"models": measured(Fitting(space, task, fold, size.rounds))},
                            labels, fold)  # fmt: skip
            models: dict[str, Any] = store.read(labels, fold)["models"]
            head = {"labels": labels, "concentration": CONCENTRATION, "fold": fold}
            rows += [{**head, "model": model, **row} for model, row in models.items()]
            print(labels, fold, models, flush=True)
    print(write_record("people", {"rows": rows}).name)
