"""What a tuner may choose: one or two numbers of a method and, where it is trained, its rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.methods.entry import Settings, Space

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

RATE = (3e-4, 3e-3)


def between(name: str, low: float, high: float, *, log: bool = True, rate: bool = True) -> Space:
    """One number, and the learning rate of what is trained."""

    def space(trial: BaseTrial) -> Settings:
        own = {name: trial.suggest_float(name, low, high, log=log)}
        return {**own, **learning_rate(trial)} if rate else own

    return space


def one_of(name: str, *values: Any) -> Space:
    """One of a few values, of what is not trained."""
    return lambda trial: {name: choice(trial, name, values)}


def choice(trial: BaseTrial, name: str, values: Sequence[Any]) -> Any:
    """A categorical setting."""
    return trial.suggest_categorical(name, values)


def learning_rate(trial: BaseTrial) -> Settings:
    """Alone, for what has no number of its own."""
    return {"learning_rate": trial.suggest_float("learning_rate", *RATE, log=True)}


def dropout(trial: BaseTrial) -> Settings:
    """Rate of the dropout, margin of the loss, learning rate."""
    return {
        "rate": trial.suggest_float("rate", 0.05, 0.3),
        "margin": trial.suggest_float("margin", 0.3, 1.0),
        **learning_rate(trial),
    }


def hib(trial: BaseTrial) -> Settings:
    """Scale and shift of the sigmoid of the contrastive HIB."""
    return {
        "scale": trial.suggest_float("scale", 4, 32, log=True),
        "shift": trial.suggest_float("shift", -16, 0),
        **learning_rate(trial),
    }


def ensemble(trial: BaseTrial) -> Settings:
    """How the heads of a shared backbone learn, and what is their uncertainty."""
    return {
        "loss": choice(trial, "loss", ("mixture", "mean")),
        "score": choice(trial, "score", ("entropy", "jensen_shannon")),
        **learning_rate(trial),
    }


def laplace(trial: BaseTrial) -> Settings:
    """Structure, pairs and prior of a Laplace posterior."""
    return {
        "structure": choice(trial, "structure", ("kron", "diag")),
        "hessian": choice(trial, "hessian", ("fixed", "positives", "full")),
        "prior_precision": trial.suggest_float("prior_precision", 1e-2, 1e4, log=True),
    }
