"""An outcome as a report, as numbers, and as a figure."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import torch

from laplace_metric import plots
from laplace_metric.cli.demo._experiment import (
    HIGHLIGHT,
    N_BOOTSTRAP,
    N_DRAWS,
    NEW,
    MethodRun,
    Outcome,
)
from laplace_metric.cli.pages import Report, Section
from laplace_metric.evaluation import MethodResult
from laplace_metric.plots import Figure


def report_of(outcome: Outcome) -> Report:
    """Both query sets, the known classes first."""
    recipe, sets = outcome.recipe, outcome.data
    ood = " and ".join(sets.ood)
    return Report(
        title=f"Does the network know what it does not know? {recipe.noun.capitalize()}",
        lead=(
            f"A small network was trained to place {recipe.noun} of the same class close "
            "together. Three ways to say how sure it is of a placement are compared on the same "
            f"weights: the length of its output (Deterministic), {N_DRAWS} passes with dropout on "
            "(MC dropout), and a Laplace posterior over its last layer (Laplace), which needs one "
            f"pass. Out-of-distribution inputs, which it should be unsure about: {ood}."
        ),
        facts=_facts(outcome),
        sections=(_known(outcome), _new(outcome)),
        spread=_spread(outcome),
        highlight=HIGHLIGHT,
    )


def numbers_of(outcome: Outcome) -> dict[str, Any]:
    """Every number of the report and what decides it, for JSON."""
    return {
        "recipe": asdict(outcome.recipe),
        "n_train": len(outcome.data.train),
        "n_bootstrap": N_BOOTSTRAP,
        "versions": _versions(),
        "runs": [_run_numbers(run) for run in outcome.runs],
    }


def overview(outcome: Outcome) -> Figure:
    """Three plots of the first network: ROC on known classes, the other two on new ones."""
    known, new = outcome.runs[0].seen, outcome.runs[0].unseen
    out = next(iter(outcome.data.ood))
    figure = Figure(figsize=(12.6, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    plots.roc_plot({name: r.ood[out].roc for name, r in known.items()}, left)
    curves = {name: r.sparsification for name, r in new.items()}
    plots.sparsification_plot(curves, HIGHLIGHT, middle)
    plots.reliability_plot({name: r.calibration for name, r in new.items()}, right)
    titles = (f"Noticing {out}", "New classes: unsure ones removed", "New classes: calibration")
    for axes, title in zip((left, middle, right), titles, strict=True):
        axes.set_title(title, fontsize=plots.FONT + 1, color=plots.INK)
    return figure


def _known(outcome: Outcome) -> Section:
    results = outcome.results("seen")
    return Section(
        f"Known classes: new {outcome.recipe.noun}",
        f"{_size(results)} queries that the network never saw, of the classes that it was trained "
        f"on ({_classes(outcome, 'seen')}), search among each other. Out-of-distribution "
        f"inputs are {', '.join(outcome.data.ood)} and {outcome.recipe.noun} of {NEW}.",
        results,
        outcome.data.seen,
    )


def _new(outcome: Outcome) -> Section:
    results = outcome.results("unseen")
    return Section(
        f"New classes: {outcome.recipe.noun} of classes never trained on",
        f"{_size(results)} queries of classes that the network never saw "
        f"({_classes(outcome, 'unseen')}) search among each other. They are new to it as "
        "well, which makes both parts harder than before: to tell right answers from wrong ones, "
        "and these queries from out-of-distribution inputs.",
        results,
        outcome.data.unseen,
    )


def _run_numbers(run: MethodRun) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "losses": run.losses,
        "prior_precision": run.prior_precision,
        "seen classes": {name: result.numbers() for name, result in run.seen.items()},
        "unseen classes": {name: result.numbers() for name, result in run.unseen.items()},
    }


def _size(results: dict[str, tuple[MethodResult, ...]]) -> int:
    return len(next(iter(results.values()))[0].queries.labels)


def _classes(outcome: Outcome, which: str) -> str:
    images = outcome.data.seen if which == "seen" else outcome.data.unseen
    present = images.labels.unique().tolist()
    if len(present) > 10:
        return f"{len(present)} classes"
    return ", ".join(images.class_names[label] for label in present)


def _spread(outcome: Outcome) -> str:
    n = len(outcome.runs)
    if n == 1:
        return (
            "One network: another seed gives other numbers. Under AUROC its 95% interval; where "
            "intervals overlap, the difference may be chance."
        )
    return (
        f"Mean over {n} networks trained from different seeds, ± its standard error; a difference "
        "of the size of the errors may be chance. The figures show the first network."
    )


def _facts(outcome: Outcome) -> dict[str, str]:
    recipe, first = outcome.recipe, outcome.runs[0]
    taus = ", ".join(f"{run.prior_precision:.3g}" for run in outcome.runs)
    return {
        "Command": (
            f"laplace-metric demo --dataset {recipe.dataset} --epochs {recipe.epochs} "
            f"--seed {first.seed} --seeds {recipe.n_seeds}"
        ),
        "Training": (
            f"{len(outcome.data.train)} images, {recipe.epochs} epochs, contrastive loss "
            f"{first.losses[0]:.3f} → {first.losses[-1]:.3f}"
        ),
        "Prior precision": f"{taus}, tuned by the marginal likelihood of the training images",
        "Sampling": f"{N_DRAWS} draws; intervals from {N_BOOTSTRAP} bootstrap resamples",
        "Time to embed the first queries": ", ".join(
            f"{name} {result.seconds:.3f} s" for name, result in first.seen.items()
        ),
        "Versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
    }


def _versions() -> dict[str, str]:
    from laplace_metric._utils.version import __version__

    return {
        "laplace-metric": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
