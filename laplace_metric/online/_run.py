"""Nested values, such as an optimiser's state, as JSON and named tensors, and back. No pickle.

Everything that changes while a model trains, as one value that can be written and put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.curvature.structures import Curvature
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models.heads import LocatedHead, named_head
from laplace_metric.online._average import curvature_of, curvature_tensors
from laplace_metric.online._step import HeadPlace, OnlineStep

PLAIN = (str, int, float, bool, type(None))


def flatten(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors that it names ``prefix0``, ``prefix1``, ...

    Dictionaries (whose keys may be numbers), lists, tuples, tensors and plain values come back
    from ``unflatten`` as they were; floats bit by bit.

    Raises
    ------
    InputError
        For a value of another kind.

    Examples
    --------
    >>> content, tensors = flatten({0: {"step": torch.tensor(3.0), "betas": (0.9, 0.99)}})
    >>> unflatten(content, tensors)
    {0: {'step': tensor(3.), 'betas': (0.9, 0.99)}}
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, prefix, tensors), tensors


def _flatten(tree: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"{prefix}{len(tensors)}"
        tensors[name] = tree.detach().cpu().clone()  # a copy each: safetensors takes no aliases
        return {"tensor": name}
    if isinstance(tree, dict):
        pairs = [[_flatten(part, prefix, tensors) for part in pair] for pair in tree.items()]
        return {"dict": pairs}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_flatten(part, prefix, tensors) for part in tree]}
    if isinstance(tree, PLAIN):
        return tree
    raise InputError(
        f"a {type(tree).__name__} cannot be written to a checkpoint: the states of model, loss, "
        "optimizer and scheduler must be made of tensors, numbers, strings, dicts and lists."
    )


def unflatten(content: Any, tensors: dict[str, Tensor]) -> Any:
    """What ``flatten`` took apart.

    Raises
    ------
    FileFormatError
        If the JSON is not of ``flatten``, or names a tensor that is not there.
    """
    if isinstance(content, PLAIN):
        return content
    try:
        ((kind, parts),) = content.items()
        if kind == "tensor":
            return tensors[parts]
        if kind == "dict":
            return {unflatten(k, tensors): unflatten(v, tensors) for k, v in parts}
        return {"list": list, "tuple": tuple}[kind](unflatten(part, tensors) for part in parts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"a nested value is damaged: {error!r}.") from error


def shapes(tree: dict[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each tensor of a state dict.

    Examples
    --------
    >>> shapes({"weight": torch.ones(2, 3)})
    {'weight': [[2, 3], 'torch.float32']}
    """
    return {k: [list(v.shape), str(v.dtype)] for k, v in tree.items() if torch.is_tensor(v)}


Tree = dict[str, Any]


@dataclass
class TrainingRun:
    """A training in progress.

    Parameters
    ----------
    step : OnlineStep
        With the model, the loss, the optimizer, the curvature and the progress.
    variances : list of float
        Mean posterior variance of the head's parameters at the end of each finished epoch.
    """

    step: OnlineStep
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    loader: Any
    device: torch.device
    variances: list[float] = field(default_factory=list)

    @property
    def stateful(self) -> dict[str, Any]:
        """What has ``state_dict`` and ``load_state_dict``; a loss may be a plain function."""
        step = self.step
        loss = step.loss if isinstance(step.loss, nn.Module) else None
        parts = ("model", "loss", "optimizer", "scheduler")
        values = (step.model, loss, step.optimizer, self.scheduler)
        return {k: v for k, v in zip(parts, values, strict=True) if v is not None}

    def identity(self) -> Tree:
        """What must be the same in a run that goes on: plain JSON values."""
        step, curvature = self.step, self.step.curvature
        return {
            **step.settings.to_json(),
            "head": _described(step.model, step.head),
            "memory": curvature.memory,
            "refresh": curvature.refresh,
            "samples": step.samples,
            "names": {k: type(v).__name__ for k, v in self.stateful.items() if k != "model"},
            "loss function": getattr(step.loss, "__name__", type(step.loss).__name__),
            "model": shapes(step.model.state_dict()),
            "loader length": step.n_batches,
        }

    def state(self) -> Tree:
        """What changes, without the random states."""
        step, running = self.step, self.step.curvature
        stale = None if running.decomposed is running.value else running.decomposed
        return {
            **{name: part.state_dict() for name, part in self.stateful.items()},
            "progress": asdict(step.progress),
            "variances": list(self.variances),
            "variance": step.variance,
            "n_updates": running.n_updates,
            "curvature": _tensors(running.value),
            "decomposed": _tensors(stale),
            "place": None if step.place is None else _place(step.place),
        }

    def restore(self, state: Tree) -> None:
        """Put back what ``state`` gave, in place."""
        step = self.step
        for name, part in self.stateful.items():
            part.load_state_dict(dict(state[name]))
        for name, value in state["progress"].items():
            setattr(step.progress, name, value)
        self.variances[:] = state["variances"]
        step.variance = state["variance"]
        if state["place"] is not None:
            step.place = _found(step.model, **state["place"])
        step.curvature.n_updates = state["n_updates"]
        value = self._sum(state["curvature"])
        stale = self._sum(state["decomposed"])
        step.curvature.set(value, value if stale is None else stale)

    def _sum(self, tensors: Sequence[Tensor] | None) -> Curvature | None:
        step = self.step
        if tensors is None or step.place is None:
            return None
        layouts = step.place.jacobian(step.settings.backend).layouts
        moved = [tensor.to(self.device) for tensor in tensors]
        return curvature_of(moved, step.settings.structure, layouts)


def _tensors(value: Curvature | None) -> list[Tensor] | None:
    return None if value is None else curvature_tensors(value)


def _place(place: HeadPlace) -> Tree:
    head = place.head
    return {"name": head.name, "normalized": head.normalized, "n_outputs": place.n_outputs}


def _found(model: nn.Module, name: str, normalized: bool, n_outputs: int) -> HeadPlace:
    found = named_head(model, name)
    if found is None:
        raise FileFormatError(f"the checkpoint is for a head {name!r}, which model lacks.")
    return HeadPlace(LocatedHead(name, found[0], normalized, found[1], n_outputs), n_outputs)


def _described(model: nn.Module, head: nn.Module | str | None) -> Any:
    """A head as it was asked for: its name, or the names of its parameters."""
    if not isinstance(head, nn.Module):
        return head
    own = {id(p) for p in head.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in own]
