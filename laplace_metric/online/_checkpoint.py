"""What the samplers of a DataLoader remember: their generators, and numbers that they change.

Most orders follow from a random state alone. ``MPerClassSampler`` of pytorch-metric-learning also
shuffles a list of its own in place, so that an epoch depends on those before it.

Every random state that a training draws from, taken and put back: what a resumed run needs.

A training on disk: written whole or not at all, read by the next ``fit``. No pickle.

The folder holds ``checkpoint.json`` and the safetensors file that it names (see ``files``): the
states of model, loss, optimizer and scheduler, the running curvature, the history, and every random
state twice, as it was when the epoch began and as it is. To resume, the epoch begins again from
the first of them, the batches of finished steps are read and dropped, and the second is put in
force: the next step sees what it would have seen.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laplace_metric._utils import files
from laplace_metric.errors import FileFormatError
from laplace_metric.online._run import TrainingRun, Tree, flatten, unflatten
from laplace_metric.training import Callback, Progress

DEPTH = 8
"""Samplers inside samplers that are looked for."""


def samplers(loader: Any) -> list[Any]:
    """The samplers of a loader, however they are nested, each once.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [type(sampler).__name__ for sampler in samplers(DataLoader([1, 2], shuffle=True))]
    ['RandomSampler', 'BatchSampler']
    """
    found: list[Any] = []
    parts = [loader]
    for _ in range(DEPTH):
        inner = [getattr(p, name, None) for p in parts for name in ("sampler", "batch_sampler")]
        parts = [p for p in inner if p is not None and all(p is not other for other in found)]
        found += parts
    return found


def generators(loader: Any) -> list[torch.Generator]:
    """Of the loader and of its samplers, each once."""
    owned = [getattr(part, "generator", None) for part in (loader, *samplers(loader))]
    return list({id(g): g for g in owned if isinstance(g, torch.Generator)}.values())


def sampler_state(sampler: Any) -> dict[str, Any]:
    """Whole numbers and lists of them (as tensors) among the attributes."""
    found: dict[str, Any] = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        if _whole(value):
            found[name] = int(value)
        elif isinstance(value, list) and value and all(_whole(v) for v in value):
            found[name] = torch.tensor([int(v) for v in value])
    return found


def restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    """Put back what ``sampler_state`` took."""
    for name, value in state.items():
        setattr(sampler, name, value.tolist() if torch.is_tensor(value) else value)


def _whole(value: Any) -> bool:
    """An int, also of numpy, that is no truth value."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def random_states(own: torch.Generator, loader: Any, device: torch.device) -> dict[str, Any]:
    """Every state as tensors and plain values; see ``restore_states``."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "generators": [g.get_state() for g in (own, *generators(loader))],
        "samplers": [sampler_state(sampler) for sampler in samplers(loader)],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_states(
    states: dict[str, Any], own: torch.Generator, loader: Any, device: torch.device
) -> None:
    """Put back what ``random_states`` took."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for generator, state in zip((own, *generators(loader)), states["generators"], strict=True):
        generator.set_state(state)
    for sampler, numbers in zip(samplers(loader), states["samplers"], strict=True):
        restore_sampler(sampler, numbers)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


CHECKPOINT = files.FileKind("checkpoint", "a training checkpoint", 1)


class Checkpointer(Callback):
    """Keeps the history of a run and, with a folder, its checkpoint.

    Parameters
    ----------
    own : torch.Generator
        That the weights are drawn from.
    folder : Path or None
        None: nothing is written.
    every : int or None
        Steps between checkpoints, beside the one after each epoch.
    """

    def __init__(
        self, run: TrainingRun, own: torch.Generator, folder: Path | None, every: int | None
    ) -> None:
        self.run, self.own, self.folder, self.every = run, own, folder, every
        self._began: Tree | None = None
        self._resumed: Tree | None = None

    def begin(self, epochs: int) -> None:
        """Put back the checkpoint if there is one, else write the state before the first step."""
        if self.folder is None:
            return
        if (self.folder / CHECKPOINT.index).exists():
            self._resume(self.folder, epochs)
        else:
            self._save()

    def epoch_begins(self, progress: Progress) -> None:
        self._began = self._random() if self.folder is not None else None

    def caught_up(self, progress: Progress) -> None:
        assert self._resumed is not None
        self._put_back(self._resumed)

    def step_done(self, progress: Progress) -> None:
        if self.every is not None and progress.steps % self.every == 0:
            self._save()

    def epoch_done(self, progress: Progress) -> None:
        self.run.variances.append(float(self.run.step.posterior().spectrum.mean()))
        self._began = None
        self._save()

    def status(self, progress: Progress) -> str:
        return f"loss {progress.mean_loss:.4g}, variance {self.run.step.variance:.3g}"

    def _random(self) -> Tree:
        return random_states(self.own, self.run.loader, self.run.device)

    def _put_back(self, states: Tree) -> None:
        restore_states(states, self.own, self.run.loader, self.run.device)

    def _save(self) -> None:
        if self.folder is None:
            return
        now = self._random()
        began = now if self._began is None else self._began
        content, tensors = flatten({**self.run.state(), "began": began, "now": now})
        identity = self.run.identity()
        files.write(self.folder, {"run": identity, "state": content}, tensors, CHECKPOINT)

    def _resume(self, folder: Path, epochs: int) -> None:
        content, tensors = files.read(folder, CHECKPOINT)
        _check_same(folder, content.get("run"), self.run.identity())
        try:
            state = unflatten(content["state"], tensors)
            _check_epochs(folder, state["progress"], epochs)
            self.run.restore(state)
            self._resumed = state["now"]
            self._put_back(state["began"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _check_epochs(folder: Path, progress: Tree, epochs: int) -> None:
    done = progress["epoch"] + (progress["step"] > 0)
    if done > epochs:
        raise FileFormatError(
            f"the checkpoint in {folder} is in epoch {done}, beyond epochs={epochs}: pass at least "
            f"epochs={done}, or another folder."
        )


def _check_same(folder: Path, written: Any, wanted: Tree) -> None:
    """Raise ``FileFormatError`` naming the first difference."""
    found = _difference(written, json.loads(json.dumps(wanted)))
    if found is not None:
        name, there, here = found
        raise FileFormatError(
            f"the checkpoint in {folder} is of another run: {name} is {there!r} there and {here!r} "
            "here. Pass what it was written with, or another folder."
        )


def _difference(there: Any, here: Any, name: str = "") -> tuple[str, Any, Any] | None:
    if not isinstance(there, dict) or not isinstance(here, dict):
        return None if there == here else (name, there, here)
    for key in {**here, **there}:
        inner = f"{name}.{key}" if name else key
        found = _difference(there.get(key), here.get(key), inner)
        if found is not None:
            return found
    return None
