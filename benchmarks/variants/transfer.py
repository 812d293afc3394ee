"""What URL shows beyond its main figure: settings, labels, and what many images would give.

    python -m benchmarks variants --pieces transfer --data DIR --cache DIR

Birds of species that training never saw, as in ``python -m benchmarks url --tasks cub``:

    settings    four settings of each method, its defaults and three at random: does the one with
                the best recall also rank errors best (figures 3, 7 and 8)?
    own image   the same without labels: a crop searches for its own image among all queries, and is
                right where it finds it (appendix A.6)
    many shots  cross-entropy trained on half of the images of the species that are asked, and asked
                with the others (section 4.2)

Trainings of ten rounds, three seeds. Nothing is chosen by these numbers.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.engine.experiment import Experiment
from benchmarks.engine.fitting import Fitting, library
from benchmarks.engine.statistics import spearman
from benchmarks.methods import METHODS, Entry
from benchmarks.methods.entry import Settings
from benchmarks.protocols.open_set import crops
from benchmarks.records import Store, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Part, Task, Workspace, build
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.evaluation import r_auroc
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours

TASK, SEEDS, TRIALS, REFERENCE = "cub", (0, 1, 2), 4, "cross-entropy"
ASKED = (
    "infonce, 1/norm", "mcinfonce", "elk", "cross-entropy", "het-xl", "loss prediction",
)  # fmt: skip
MANY = "many shots"
Row = dict[str, Any]


def trials(entry: Entry) -> list[Settings]:
    """The defaults, then settings at random, the same for every seed."""
    assert not isinstance(entry.space, str)
    optuna = library()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [entry.space(study.ask()) for _ in range(TRIALS - 1)]
    return [dict(entry.default or {}), *drawn]


def fitted(entry: Entry, settings: Settings, fitting: Fitting) -> Experiment:
    """One training."""
    method, _ = fitting.fit(entry, settings, fitting.network())
    return Experiment(entry, method, fitting.task, fitting.space, fitting.seed)


def by_labels(experiment: Experiment) -> Row:
    """Recall@1 of the queries, and R-AUROC."""
    unsure, right = experiment.answered
    return {"recall@1": experiment.recall.value, "r_auroc": r_auroc(unsure, right)}


def by_own_image(experiment: Experiment) -> Row:
    """The same of crops that search for their own image."""
    cut = crops(experiment)
    assert cut is not None
    near = nearest_neighbours(cut.mean, experiment.known.mean, k=1).indices[:, 0]
    own = (near == torch.arange(len(near))).double()
    return {"own recall@1": float(own.mean()), "own r_auroc": r_auroc(cut.uncertainty, own)}


def measured(name: str, settings: Settings, space: Workspace, seed: int) -> Row:
    """What one setting of a method gives; of ``MANY`` the reference."""
    task = build(TASK, space, 0)
    if name != MANY:
        fitting = Fitting(space, task, seed, space.size.short)
        experiment = fitted(METHODS[name], settings, fitting)
        return {**by_labels(experiment), **by_own_image(experiment)}
    shown, asked = halves(task)
    task = replace(task, train=shown, test=asked)
    fitting = Fitting(space, task, seed, space.size.rounds)
    return by_labels(fitted(METHODS[REFERENCE], settings, fitting))


def halves(task: Task) -> tuple[Part, Part]:
    """Return every second image of each new class, and as many others as the task asks."""
    everything = task.test if task.whole is None else task.whole
    order = everything.labels.argsort(stable=True)
    counts = everything.labels.unique(return_counts=True)[1]
    place = torch.empty_like(order)
    place[order] = torch.cat([torch.arange(int(count)) for count in counts])
    asked = everything.subset(place % 2 == 1).spread(len(task.test))
    return everything.subset(place % 2 == 0), asked


def by_seed(rows: Sequence[Row], x: str, y: str) -> list[float]:
    """Rank correlation over the settings, seed by seed."""
    seeds = sorted({row["seed"] for row in rows})
    chosen = [[row for row in rows if row["seed"] == seed] for seed in seeds]
    return [spearman([r[x] for r in own], [r[y] for r in own]) for own in chosen]


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``transfer.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    space = Workspace(options.data, options.cache, SMALL, progress=False)
    store, rows = Store(options.cache / "transfer"), []
    for seed in options.seeds or SEEDS:
        for name in (MANY, *ASKED):
            kinds = trials(METHODS[name]) if name != MANY else trials(METHODS[REFERENCE])[:1]
            for trial, settings in enumerate(kinds):
                if not store.has(name, trial, seed):
                    row = {"settings": settings, **measured(name, settings, space, seed)}
                    store.write(row, name, trial, seed)
                row = store.read(name, trial, seed)
                row.pop("environment")
                rows.append({"method": name, "trial": trial, "seed": seed, **row})
                shown = {k: round(v, 3) for k, v in row.items() if k != "settings"}
                print(name, trial, seed, shown, flush=True)
    print(write_record("transfer", {"rows": rows}).name)
