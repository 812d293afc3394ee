"""A training on disk: written as a whole or not at all, read by the next ``fit``. No pickle.

The folder holds ``checkpoint.safetensors`` (see ``io``): the states of model, loss, optimizer and
scheduler, the running curvature, the history and every random state, as they were when the last
epoch ended. The next epoch sees what it would have seen.

A nested state, such as an optimiser's, becomes JSON and named tensors. Most orders of a DataLoader
follow from a random state alone. ``MPerClassSampler`` of pytorch-metric-learning also shuffles a
list of its own in place, so that an epoch depends on those before it: the numbers that a sampler
holds are a state too.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._calling import Inputs
from laplace_metric.training import Callback, Progress, train_epochs

CHECKPOINT = files.Kind("training", "a training checkpoint", 2)
FILE = "checkpoint.safetensors"
StateTree = dict[str, Any]
"""Nested dictionaries, lists, tuples, tensors and plain values."""

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
    """Rebuild the tree that ``flatten`` took apart.

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


MAX_DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, however they are nested, each once.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [type(sampler).__name__ for sampler in samplers(DataLoader([1, 2], shuffle=True))]
    ['RandomSampler', 'BatchSampler']
    """
    nested: list[Any] = []
    parts = [loader]
    for _ in range(MAX_DEPTH):
        inner = [getattr(p, name, None) for p in parts for name in ("sampler", "batch_sampler")]
        parts = [p for p in inner if p is not None and all(p is not other for other in nested)]
        nested += parts
    return nested


def generators(loader: Any) -> list[torch.Generator]:
    """The generators of the loader and of its samplers, each once."""
    attributes = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in attributes if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """The integers and lists of integers (as tensors) among the attributes."""
    state: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _is_integer(value):
            state[name] = int(value)
        elif isinstance(value, list) and value and all(_is_integer(v) for v in value):
            state[name] = torch.tensor([int(v) for v in value])
    return state


def _is_integer(value: Any) -> bool:
    """Return whether it is an int, also of numpy, and no bool."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def random_states(weights: torch.Generator, loader: Any, device: torch.device) -> StateTree:
    """Every random state that a training draws from, ``weights`` among them."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "generators": [g.get_state() for g in (weights, *generators(loader))],
        "samplers": [sampler_state(sampler) for sampler in samplers(loader)],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_states(
    states: StateTree, weights: torch.Generator, loader: Any, device: torch.device
) -> None:
    """Put back what ``random_states`` took."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for generator, state in zip((weights, *generators(loader)), states["generators"], strict=True):
        generator.set_state(state)
    for sampler, state in zip(samplers(loader), states["samplers"], strict=True):
        for name, value in state.items():
            setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


class ResumableRun(Callback, ABC):
    """A training that goes on from its checkpoint, to the same bits.

    Parameters
    ----------
    parts : mapping of name to module, optimizer or scheduler
        Whatever has ``state_dict`` and ``load_state_dict``.
    loader, device
        Of the batches.
    generator : torch.Generator
        That the weights are drawn from.
    folder : Path or None
        None: nothing is written.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        loader: Any,
        device: torch.device,
        generator: torch.Generator,
        folder: Path | None,
    ) -> None:
        self.parts, self.loader, self.device = dict(parts), loader, device
        self.generator, self.folder = generator, folder
        self.progress = Progress()

    @abstractmethod
    def step(self, inputs: Inputs, labels: Tensor) -> float:
        """Take one optimisation step; return its loss."""

    @abstractmethod
    def identity(self) -> StateTree:
        """Return the settings that a resumed run must share: plain JSON values."""

    @abstractmethod
    def own_state(self) -> StateTree:
        """Return what changes apart from ``parts``, ``progress`` and the random states."""

    @abstractmethod
    def restore(self, state: StateTree) -> None:
        """Put back what ``own_state`` gave, in place."""

    def train(self, epochs: int, *, show: bool) -> None:
        """Go on from the checkpoint if there is one, until ``epochs`` are finished.

        Raises
        ------
        FileFormatError
            If the checkpoint is damaged, or of another run.
        """
        if self.folder is not None and (self.folder / FILE).exists():
            self._resume(self.folder, epochs)
        else:
            self._save()
        train_epochs(
            self.step,
            self.loader,
            self.device,
            epochs=epochs,
            scheduler=self.parts.get("scheduler"),
            show=show,
            progress=self.progress,
            callback=self,
        )

    def epoch_done(self, progress: Progress) -> None:
        self._save()

    def _save(self) -> None:
        if self.folder is None:
            return
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"progress": asdict(self.progress), **self.own_state()}
        state["random"] = random_states(self.generator, self.loader, self.device)
        content, tensors = flatten(state)
        whole = {"run": self.identity(), "state": content}
        files.write(self.folder / FILE, files.Part(CHECKPOINT, whole, tensors))

    def _resume(self, folder: Path, epochs: int) -> None:
        files.remove_abandoned(folder / FILE)  # a run that is finished already writes nothing
        saved = files.SavedFile(folder / FILE)
        part = saved.part(CHECKPOINT)
        content, tensors = part.content, dict(part.arrays)
        if difference := files.difference(content.get("run"), self.identity()):
            raise FileFormatError(
                f"the checkpoint in {folder} is of another run: {difference}. Pass what it was "
                "written with, or another folder."
            )
        with saved.checked():
            state = unflatten(content["state"], tensors)
            if (finished := state["progress"]["epoch"]) > epochs:
                raise FileFormatError(
                    f"{saved.path} has {finished} epochs, more than "
                    f"epochs={epochs}: pass at least as many, or another folder."
                )
            for name, part in self.parts.items():
                part.load_state_dict(dict(state[name]))
            vars(self.progress).update(state["progress"])
            self.restore(state)
            restore_states(state["random"], self.generator, self.loader, self.device)
