"""Inputs of earlier layers than the head, as one row of numbers for each input of the model.

    linear layer, input [B, E]              as it is
    linear layer, input [B, ..., E]         mean over tokens or places
    convolution, input [B, E, ...]          mean over its map

More than ``WIDEST`` numbers are projected onto ``WIDEST`` random directions, drawn from a seed,
which keep distances up to some 6 % (Johnson and Lindenstrauss 1984). Tokens count where the model
takes one floating tensor, such as images: of texts, padding would enter the mean.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._recording import REGISTRATION
from laplace_metric.inputs._batches import ModelInput

N_LAYERS = 3
"""Number of layers before the head whose inputs are read."""
WIDEST, MOST_READ = 512, 2**14
"""Numbers of a row that are kept as they are, and inputs of a layer that is read at all."""
STATED = "earlier_layers"
"""Attribute of a model that names its layers itself, instead of their being found."""


@dataclass
class EnteredRows:
    """Rows that entered layers while a model ran, and the order in which the layers ran.

    Parameters
    ----------
    names : sequence of str, or None
        Names of the layers that were asked for; None: those before the head.
    rows : dict of name to Tensor [B, E], or None
        Rows of each layer that ran last; None for an input of another form.
    order : list of str
        Names of the layers, one for each time that one ran.
    own : dict of name to module
        Layers whose inputs are recorded.
    """

    names: Sequence[str] | None
    rows: dict[str, Tensor | None] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    own: dict[str, nn.Module] = field(default_factory=dict)

    def before(self, head: LocatedHead, h: Float[Tensor, "B D"]) -> dict[str, Tensor]:
        """Return the rows that were asked for, by the name of the layer, the last one first.

        Without names they are of the last layers that ran once, have one row for each input, and
        were not given what enters the head.

        Parameters
        ----------
        head : LocatedHead
            Head of the model.
        h : Tensor [B, D]
            Rows that entered it.
        """
        if self.names is not None:
            named = ((name, self.rows.get(name)) for name in self.names)
            return {name: x for name, x in named if x is not None}
        heads = {id(m) for m in (head.source or head.module).modules()} | {id(head.module)}
        found = dict[str, Tensor]()
        for name in reversed(self.order):
            x = self.rows[name]
            once = self.order.count(name) == 1 and id(self.own[name]) not in heads
            if not once or x is None or len(x) != len(h):
                continue
            if x.shape != h.shape or not torch.equal(x, h.to(x)):
                found[name] = x
        return dict(islice(found.items(), N_LAYERS))


@contextmanager
def entering_layers(
    model: nn.Module, names: Sequence[str] | None, inputs: ModelInput
) -> Iterator[EnteredRows]:
    """Record the rows that enter layers while this thread runs the model.

    Parameters
    ----------
    model : nn.Module
        Model that has the layers.
    names : sequence of str, or None
        Names of its layers; None: all, or those that it states (``earlier_layers``).
    inputs : ModelInput
        Batch that the model runs on.

    Examples
    --------
    >>> from laplace_metric.heads._locate import locate_head
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> x = torch.ones(3, 4)
    >>> with entering_layers(model, None, x) as entered:
    ...     head, activations = locate_head(model, x)
    >>> list(entered.before(head, activations.features))
    ['2', '0']
    """
    names = _stated(model) if names is None else names
    entered = EnteredRows(names)
    if isinstance(model, torch.jit.ScriptModule) or (names is not None and not names):
        yield entered
        return
    entered.own = {
        name: module
        for name, module in model.named_modules()
        if (isinstance(module, (nn.Linear, _ConvNd)) if names is None else name in names)
        and not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
    }
    thread = threading.get_ident()
    same_size = isinstance(inputs, Tensor) and inputs.is_floating_point()

    def enter(name: str) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                entered.order.append(name)
                x = args[0] if args else None
                entered.rows[name] = row_of(module, x, same_size=same_size)

        return record

    handles = []
    try:
        with REGISTRATION:
            for name, module in entered.own.items():
                handles.append(module.register_forward_pre_hook(enter(name)))
        yield entered
    finally:
        for handle in handles:
            handle.remove()


def _stated(model: nn.Module) -> tuple[str, ...] | None:
    """Return the names that a model states; None for an attribute of another kind."""
    stated, modules = getattr(model, STATED, None), dict(model.named_modules())
    if not isinstance(stated, tuple) or not all(name and name in modules for name in stated):
        return None
    return stated


def row_of(module: nn.Module, x: Any, *, same_size: bool) -> Float[Tensor, "B E"] | None:
    """Return one row of numbers for each input; None where a layer's input has another form."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        return None
    x = x.detach()
    if isinstance(module, _ConvNd):
        if x.ndim != module.weight.ndim:
            return None
        x = x.flatten(2).mean(2)
    elif x.ndim > 2:
        if not same_size:
            return None
        x = x.flatten(1, -2).mean(1)
    if x.shape[1] > MOST_READ:
        return None
    return narrowed(x.clone())  # later steps may be in place


def narrowed(x: Float[Tensor, "B E"]) -> Float[Tensor, "B e"]:
    """Return rows of at most ``WIDEST`` numbers, whose distances are nearly those of ``x``.

    Examples
    --------
    >>> x = torch.eye(2, 2_000)
    >>> narrowed(x).shape, bool((narrowed(x)[0] - narrowed(x)[1]).norm() < 1.1 * 2**0.5)
    (torch.Size([2, 512]), True)
    """
    return x if x.shape[1] <= WIDEST else x @ _directions(x.shape[1]).to(x)


@lru_cache(maxsize=4)
def _directions(width: int) -> Float[Tensor, "E e"]:
    source = torch.Generator().manual_seed(width)
    return torch.randn(width, WIDEST, generator=source) / WIDEST**0.5
