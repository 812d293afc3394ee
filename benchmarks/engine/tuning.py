"""Choosing settings: the same number of trials for every method, on validation data alone."""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from benchmarks.engine.fitting import Fitting
from benchmarks.methods import Entry
from benchmarks.methods.entry import Settings
from laplace_metric import ProbabilisticEmbedder
from laplace_metric.errors import LaplaceMetricError, MissingPackageError
from laplace_metric.evaluation import recall_at_k, sparsification

Trial = dict[str, Any]


def validate(method: ProbabilisticEmbedder, fitting: Fitting) -> dict[str, float]:
    """AUSC of recall@1 on the validation part: rank well, and retrieve well."""
    embedding, labels = method.embed(fitting.task.validation.loader(), progress=False)
    recall = recall_at_k(embedding.mean, labels, 1)
    kept = recall.counted
    curve = sparsification(embedding.uncertainty[kept], recall.per_query[kept])
    return {"ausc": curve.ausc, "recall@1": recall.value}


def tune(entry: Entry, fitting: Fitting, network: nn.Module) -> list[Trial]:
    """Every setting that was tried, the defaults first, with its validation numbers.

    Optuna's tree-structured Parzen estimator, seeded. A setting that fails (a loss that is no
    longer finite, a number that does not fit the network) counts as tried, with its message.
    """
    assert not isinstance(entry.space, str)
    optuna = library()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(entry.default or {})
    tried: list[Trial] = []
    for _ in range(fitting.space.size.trials):
        trial = study.ask()
        settings = entry.space(trial)
        result = attempt(entry, fitting, network, settings)
        tried.append({"settings": settings, **result})
        failed = optuna.trial.TrialState.FAIL
        study.tell(trial, result.get("ausc"), failed if "error" in result else None)
    return tried


def library() -> ModuleType:
    """Optuna, without its lines about every trial."""
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        install = "pip install 'laplace-metric[benchmarks]'"
        raise MissingPackageError("optuna", "tuning", install) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def attempt(entry: Entry, fitting: Fitting, network: nn.Module, settings: Settings) -> Trial:
    """The validation numbers of one setting, or what went wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return validate(fitting.fit(entry, settings, network)[0], fitting)
    except LaplaceMetricError as error:
        return {"error": str(error)}


def best(tried: list[Trial]) -> Settings:
    """The settings of the largest AUSC, the earliest among equals."""
    return dict(max(tried, key=lambda one: one.get("ausc", -math.inf))["settings"])
