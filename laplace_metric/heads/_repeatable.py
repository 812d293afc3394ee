"""Check that a model maps each input by itself, and to the same embedding each time.

A few rows of a batch are run twice, and a few others once, and compared with what they gave among
the whole batch. A layer
that draws at random in eval mode makes the two runs differ; one that mixes the rows of a batch
makes them differ from the whole one. Rows that a loader has padded stay padded here, unless an
``attention_mask`` says where: a mean over padding is noticed in models of texts, and with a mask.

A draw that changes few rows, or few calls, such as stochastic depth, may leave two runs equal. It
moves the state of a generator, and only then the rows are run again, up to ``TRIES`` times. A
single row is compared with itself next to another one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from laplace_metric.errors import InputError
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models._precomputed import Precomputed

ROWS = 8
"""Rows that are run again: the fewer they are, the more another row's share in them changes."""
TRIES = 64
"""Runs of a model that draws numbers: a draw of 5 % of the calls is missed in .04 of cases."""
AGAIN, AMONG_OTHERS = 1e-3, 0.03
"""Relative differences that rounding explains: of two equal calls, of which few kernels round one
by one; and of batches of other sizes, which is up to .01 in bfloat16 (its unit is .004). Functional
dropout gives .7, batch statistics of eight rows .3, a mean over padding 1.6."""


Run = Callable[[ModelInput], tuple[Tensor, ...]]
"""B inputs -> tensors [B, ...] that have to depend on each input alone, and to be repeatable."""


def check_repeatable(
    model: nn.Module, head: LocatedHead, inputs: ModelInput, seen: HeadActivations
) -> None:
    """Run a few rows of a batch of a model with a head again, and compare.

    Parameters
    ----------
    model : nn.Module
        Model, in any mode.
    head : LocatedHead
        Head that was found.
    inputs : ModelInput
        Batch that the model was run on.
    seen : HeadActivations
        Activations that it gave.

    Raises
    ------
    InputError
        If the model draws at random, or if an embedding depends on the other rows of its batch.
    """
    if isinstance(inputs, SeenInputs) or isinstance(model, Precomputed):
        return

    def run(inputs: ModelInput) -> tuple[Tensor, ...]:
        given = capture(model, head, inputs)
        return given.features, given.raw

    check_same_again(model, run, inputs, (seen.features, seen.raw))


def check_same_again(
    model: Callable[..., object], run: Run, inputs: ModelInput, seen: tuple[Tensor, ...]
) -> None:
    """Run a few rows of a batch again, and compare.

    Parameters
    ----------
    model : callable
        Model or function that the message names.
    run : callable
        Inputs -> what the model gives for them.
    inputs : ModelInput
        Batch of B inputs that the model was run on.
    seen : tuple of [B, ...]
        Tensors that it gave.

    Raises
    ------
    InputError
        If the model draws at random, or if an embedding depends on the other rows of its batch.
    """
    n = len(seen[0])
    order, size = _shortest(inputs, n), max(1, min(ROWS, n // 2))
    parts = [order[:size], order[-size:]] if n > 1 else []
    before = _states()
    try:
        runs = [run(_taken(inputs, rows, n)) for rows in parts]
        again = run(_taken(inputs, parts[0], n)) if parts else None
    except Exception:  # a model of batches of one size: any error that a layer raises
        runs, again = [], None
    if again is None or any(len(given[0]) != size for given in runs):
        runs, again = [seen], run(inputs)
        parts = [torch.arange(n)]
    gap = _gap(again, runs[0])
    if gap <= AGAIN and _states() != before:
        gap = _largest_of_tries(run, _taken(inputs, parts[0], n), runs[0])
    if gap > AGAIN:
        raise InputError(_at_random(model, gap))
    if n == 1:
        runs, parts = [_next_to_another(run, inputs, runs[0])], [torch.arange(1)]
    among = [tuple(x[rows.to(x.device)] for x in seen) for rows in parts]
    gap = max(_gap(given, part) for given, part in zip(runs, among, strict=True))
    if gap <= AMONG_OTHERS:
        return
    if (by_chance := _gap(run(inputs), seen)) > AGAIN:
        raise InputError(_at_random(model, by_chance))
    raise InputError(
        f"{_name(model)} gives an input another embedding among other rows of a batch, "
        f"{gap:.0%} apart: {_reason(model)}. The embedding of an input must depend on it alone."
    )


def _name(model: Callable[..., object]) -> str:
    """Return the class of a module, or the name of a function."""
    return str(getattr(model, "__name__", type(model).__name__))


def _states() -> tuple[Any, ...]:
    """Return the states of the generators that a model may draw from."""
    of_torch = torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        of_torch += torch.cuda.get_rng_state().numpy().tobytes()
    of_numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (what a model may use)
    return of_torch, of_numpy["state"]["pos"], random.getstate()


def _largest_of_tries(run: Run, inputs: ModelInput, first: tuple[Tensor, ...]) -> float:
    """Return the first gap above rounding of ``TRIES`` runs, or 0."""
    for _ in range(TRIES):
        if (gap := _gap(run(inputs), first)) > AGAIN:
            return gap
    return 0.0


def _next_to_another(run: Run, inputs: ModelInput, alone: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the run of one row next to another one; of other inputs than numbers, as it was."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return alone
    try:
        both = run(torch.cat([inputs, -2 * inputs]))
    except Exception:  # a model of one row
        return alone
    return tuple(x[:1] for x in both)


def _at_random(model: Callable[..., object], gap: float) -> str:
    return (
        f"{_name(model)} gives other embeddings for the same inputs in a second call, "
        f"{gap:.1%} apart: it draws at random in eval mode. Switch that off: a functional dropout "
        "takes training=self.training, nn.Dropout does it by itself, and a layer of noise or a "
        "sampled latent needs its mean."
    )


def _gap(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """Return the largest relative difference of two runs."""
    gaps = []
    for x, y in zip(a, b, strict=True):
        x, y = x.double(), y.double()
        gaps.append(float((x - y).norm() / y.norm().clamp_min(torch.finfo(y.dtype).tiny)))
    return max(gaps)


def _reason(model: Callable[..., object]) -> str:
    """Return the layer that is to blame, or those that may be."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            kind = type(module).__name__
            return (
                f"{name} ({kind}) has no running statistics (track_running_stats=False), so that "
                "it uses those of each batch. Train it with running statistics, or use LayerNorm"
            )
    return (
        "it depends on the other rows of the batch, such as by statistics or attention over the "
        "batch, or by a mean over padding without a mask"
    )


def _shortest(inputs: ModelInput, n: int) -> Tensor:
    """Return all n rows, the shortest texts first: these are padded most in a batch."""
    if isinstance(inputs, list) and all(isinstance(text, str) for text in inputs):
        return torch.tensor([len(text) for text in inputs]).argsort(stable=True)
    mask = _mask(inputs)
    if mask is not None and len(mask) == n:
        return mask.sum(1).argsort(stable=True).cpu()
    return torch.arange(n)


def _mask(inputs: ModelInput) -> Tensor | None:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _taken(inputs: ModelInput, rows: Tensor, n: int) -> ModelInput:
    """Return some of the n rows, without the tokens that none of them has."""
    taken = _each(inputs, lambda value: _at(value, rows, n))
    mask = _mask(taken)
    if mask is None:
        return taken
    used, shape = mask.bool().any(0), mask.shape
    return _each(taken, lambda x: x[:, used] if getattr(x, "shape", ())[:2] == shape else x)


def _each(inputs: ModelInput, change: Callable[[Any], Any]) -> ModelInput:
    """Return the inputs with each of their several parts changed."""
    if isinstance(inputs, Mapping):
        return {name: _each(part, change) for name, part in inputs.items()}
    return tuple(_each(x, change) for x in inputs) if isinstance(inputs, tuple) else change(inputs)


def _at(value: Any, rows: Tensor, n: int) -> Any:
    """Return rows of a part that has n of them; anything else as it is."""
    if isinstance(value, list):
        return [value[row] for row in rows.tolist()] if len(value) == n else value
    if not isinstance(value, (Tensor, np.ndarray)) or not value.ndim or len(value) != n:
        return value
    return value[rows.to(value.device)] if isinstance(value, Tensor) else value[rows.numpy()]
