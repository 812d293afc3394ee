"""What URL shows beyond its main figure: settings, labels, and what many images would give.

    python -m benchmarks variants --pieces transfer --data DIR --cache DIR

Birds of species that training never saw, at 96 pixels, as in ``python -m benchmarks fewshot``:

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
from benchmarks.engine.statistics import mean_and_standard_error, spearman
from benchmarks.methods import METHODS, Entry
from benchmarks.methods.entry import Settings
from benchmarks.protocols.open_set import crops, shares
from benchmarks.records import Store, markdown, read_record, thousandths, write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Workspace, build
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.evaluation import r_auroc
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours

TASK, SEEDS, TRIALS, REFERENCE = "cub-96", (0, 1, 2), 4, "cross-entropy"
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
    shown, asked = shares(task)[""]
    task = replace(task, train=shown, test=asked)
    fitting = Fitting(space, task, seed, space.size.rounds)
    return by_labels(fitted(METHODS[REFERENCE], settings, fitting))


def of(rows: Sequence[Row], key: str, settings: int | None = None) -> list[float]:
    """A number of every row, or of those of one setting."""
    return [row[key] for row in rows if settings is None or row["trial"] == settings]


def best(rows: Sequence[Row], key: str) -> int:
    """The trial of the largest mean."""
    kinds = sorted({row["trial"] for row in rows})
    return max(kinds, key=lambda trial: mean_and_standard_error(of(rows, key, trial)).mean)


def by_seed(rows: Sequence[Row], x: str, y: str) -> list[float]:
    """Rank correlation over the settings, seed by seed."""
    seeds = sorted({row["seed"] for row in rows})
    chosen = [[row for row in rows if row["seed"] == seed] for seed in seeds]
    return [spearman(of(own, x), of(own, y)) for own in chosen]


def cell(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    s = mean_and_standard_error(values)
    return f"{thousandths(s.mean)} ± {thousandths(s.standard_error)}"


def table() -> str:
    """A line a method: its two best settings, correlations over settings, own images."""
    found = read_record("transfer")["rows"]
    lines = []
    for name in ASKED:
        rows = [row for row in found if row["method"] == name]
        ends = [
            " / ".join(cell(of(rows, key, best(rows, by))) for key in ("recall@1", "r_auroc"))
            for by in ("recall@1", "r_auroc")
        ]
        own = " / ".join(cell(of(rows, key, 0)) for key in ("own recall@1", "own r_auroc"))
        ranks = [cell(by_seed(rows, key, "r_auroc")) for key in ("recall@1", "own r_auroc")]
        lines.append([name, *ends, ranks[0], own, ranks[1]])
    rows = [row for row in found if row["method"] == MANY]
    reference = " / ".join(cell(of(rows, key)) for key in ("recall@1", "r_auroc"))
    lines.append([f"{REFERENCE}, {MANY}", reference, *[""] * 4])
    header = ["method", "best recall@1 / its R-AUROC", "recall@1 / best R-AUROC",
              "rank correlation", "own image: recall@1 / R-AUROC",
              "R-AUROC of own images and of labels"]  # fmt: skip
    return markdown(header, lines)


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
