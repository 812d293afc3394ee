"""MCInfoNCE on CIFAR-10H: which labels, which kappa, and a model chosen without labels.

    python -m benchmarks variants --pieces people --data DIR --cache DIR

The five folds of ``python -m benchmarks human``, at 64 pixels in place of 96. Labels are drawn from
what people said (``soft``) or what most of them said (``majority``); kappa comes from a head, or is
c |z| as in Kirchhof et al. 2023a. Of each training two models are asked: the last one, and that of
the round whose crops of validation images are ranked best (their trick, which needs no label).
"""

from __future__ import annotations

import copy
import warnings
from argparse import Namespace
from dataclasses import replace
from typing import Any

from baselines import MCInfoNCE, Training
from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import DECAY, Fitting
from benchmarks.engine.scores import Score
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.methods import METHODS
from benchmarks.protocols.closed_set import human
from benchmarks.records import Store, markdown, read_record, thousandths, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Task, Workspace, build
from benchmarks.tasks.frozen import FOLDS, shares
from benchmarks.variants.views import settings_of
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.training import Callback, Progress

METHOD = "mcinfonce"
LABELS, CONCENTRATIONS = ("soft", "majority"), ("head", "norm")
LAST, CHOSEN = "last round", "chosen by crops"
METRICS = {"entropy rank": "entropy", "crop rank": "crop", "recall@1": "recall@1",
           "r_auroc": "R-AUROC"}  # fmt: skip


class Best(Callback):
    """Keeps a copy of the method of the round whose validation crops are ranked best."""

    def __init__(self, method: MCInfoNCE, fitting: Fitting) -> None:
        self.method, self.fitting = method, fitting
        self.task = replace(fitting.task, test=fitting.task.validation)
        self.score, self.round = -2.0, 0

    def epoch_done(self, progress: Progress) -> None:
        """Ask the validation part."""
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


def measured(fitting: Fitting, concentration: str) -> dict[str, dict[str, float]]:
    """Both models of one training."""
    settings = settings_of(METHOD)
    training = Training(
        epochs=fitting.rounds,
        learning_rate=settings.pop("learning_rate"),
        decay=DECAY / fitting.rounds,
        seed=fitting.seed,
    )
    method = Watched(fitting.network(), training=training, concentration=concentration, **settings)
    method.fitting = fitting
    method.fit(fitting.loaders().training, progress=False)
    rows = {LAST: asked(method, fitting, fitting.task)}
    for module, state in zip((method.model, method.parts), method.best.kept, strict=True):
        module.load_state_dict(state)
    chosen = asked(method, fitting, fitting.task)
    return {**rows, CHOSEN: {**chosen, "round": float(method.best.round)}}


def table() -> str:
    """Mean ± standard error over the folds."""
    found = read_record("people")["rows"]
    columns = {**METRICS, "round": "its round"}
    lines = []
    for key in dict.fromkeys((r["labels"], r["concentration"], r["model"]) for r in found):
        own = [r for r in found if (r["labels"], r["concentration"], r["model"]) == key]
        cells = []
        for name in columns:
            values = [row[name] for row in own if name in row]
            s = mean_and_standard_error(values) if values else None
            cells.append(f"{thousandths(s.mean)} ± {thousandths(s.standard_error)}" if s else "")
        lines.append([f"{key[0]} labels, kappa: {key[1]}, {key[2]}", *cells])
    return markdown(["MCInfoNCE", *columns.values()], lines)


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``people.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    size = replace(SMALL, side=64)
    space = Workspace(options.data, options.cache, size, progress=False)
    store, rows = Store(options.cache / "people"), []
    for labels in LABELS:
        for concentration in CONCENTRATIONS:
            for fold in options.seeds or range(FOLDS):
                words = (labels, concentration, fold)
                if not store.has(*words):
                    task = labelled(build("cifar10h-soft", space, fold), labels)
                    fitting = Fitting(space, task, fold, size.rounds)
                    store.write({"models": measured(fitting, concentration)}, *words)
                models: dict[str, Any] = store.read(*words)["models"]
                head = {"labels": labels, "concentration": concentration, "fold": fold}
                rows += [{**head, "model": model, **row} for model, row in models.items()]
                print(*words, models, flush=True)
    print(write_record("people", {"rows": rows}).name)
