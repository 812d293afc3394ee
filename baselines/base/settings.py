"""Settings: those of a training, and the checks of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from laplace_metric._utils import validation
from laplace_metric._utils.validation import check_count, check_name, check_real
from laplace_metric.errors import InputError

UNSAVED = {"saved": False}
"""Metadata of a field that is no setting: a module, a function, a generator."""

LAYERS = ("embedding", "features")
"""Where a method reads an input: the raw embedding z, or the features h that enter the head."""

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def check_positive(method: object, *names: str) -> None:
    """Check that each of these settings is a number above 0.

    Raises
    ------
    InputError
        If one is not.

    Examples
    --------
    >>> class Method:
    ...     scale = -1
    >>> check_positive(Method(), "scale")
    Traceback (most recent call last):
    laplace_metric.errors.InputError: scale=-1: pass a finite number > 0.
    """
    for name in names:
        validation.check_positive(name, getattr(method, name))


def check_not_negative(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a number from 0 on."""
    for name in names:
        if check_real(name, getattr(method, name), "number >= 0") < 0:
            raise InputError(f"{name}={getattr(method, name)!r}: pass a number >= 0.")


def check_counts(method: object, *names: str) -> None:
    """Raise ``InputError`` unless each of these settings is a whole number above 0."""
    for name in names:
        check_count(name, getattr(method, name))


LARGEST = float(torch.finfo(torch.float32).max)
"""Settings enter networks in float32."""


def check_kinds(settings: Any) -> None:
    """Make each field that is annotated as a number or a flag one of Python's own.

    Raises
    ------
    InputError
        For what is no number that float32 can hold, no whole number, no flag.

    Examples
    --------
    >>> Training(epochs=torch.tensor(3).numpy()[()]).epochs
    3
    """
    for item in fields(settings):
        kind, value = str(item.type).removesuffix(" | None"), getattr(settings, item.name)
        if item.init and kind in KINDS and not (value is None and kind != item.type):
            object.__setattr__(settings, item.name, KINDS[kind](item.name, value))


def _check_number(name: str, value: Any) -> float:
    number = check_real(name, value)
    if abs(number) > LARGEST:
        raise InputError(f"{name}={value!r}: pass a number up to {LARGEST:.1e}.")
    return number


def _check_whole(name: str, value: Any) -> int:
    return check_count(name, value, -validation.LARGEST)


def _check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}={value!r}: pass True or False.")
    return bool(value)


KINDS: dict[str, Callable[[str, Any], Any]] = {
    "float": _check_number,
    "int": _check_whole,
    "bool": _check_flag,
}
"""By the annotation of a field."""


def check_layer(on: str) -> None:
    """Raise ``UnknownNameError`` unless ``on`` is one of ``LAYERS``."""
    check_name("on", on, LAYERS)


@dataclass(frozen=True)
class Training:
    """Settings of a training.

    Parameters
    ----------
    epochs : int
        Number of passes over the loader, at least 1. Default: 10.
    learning_rate : float > 0
        Learning rate of the first epoch. Default: 0.001.
    decay : float >= 0
        Decay of the learning rate, which falls by exp(-decay) each epoch. Default: 0, a constant
        rate.
    weight_decay : float >= 0
        Weight decay of the optimizer. Default: 0.
    optimizer : "adam" | "adamw" | "rmsprop"
        Optimizer of the training. Default: "adam".
    seed : int
        Seed of new weights, dropout and sampled losses; global random states stay as they are.
        Default: 0.

    Examples
    --------
    >>> Training(epochs=2).learning_rate
    0.001
    """

    epochs: int = 10
    learning_rate: float = 1e-3
    decay: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "adam"
    seed: int = 0

    def __post_init__(self) -> None:
        check_kinds(self)
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        check_count("epochs", self.epochs)
        check_count("seed", self.seed, 0)
        check_not_negative(self, "decay", "weight_decay")
        check_positive(self, "learning_rate")

    def optimize(
        self, parameters: Iterable[nn.Parameter]
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return an optimiser of these parameters, and the scheduler of its learning rate.

        Raises
        ------
        InputError
            If no parameter can be trained.
        """
        trainable = [p for p in parameters if p.requires_grad]
        if not trainable:
            raise InputError("nothing to train: no parameter has requires_grad=True.")
        optimizer = OPTIMIZERS[self.optimizer](
            trainable,
            lr=self.learning_rate,  # type: ignore[call-arg]
            weight_decay=self.weight_decay,
        )
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-self.decay))
