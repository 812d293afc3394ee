"""A training on disk: written whole or not at all, read by the next ``fit``. No pickle.

The folder holds ``checkpoint.json`` and the safetensors file that it names (see ``files``): the
states of model, loss, optimizer and scheduler, the running curvature, the history, and every random
state twice, as it was when the epoch began and as it is. To resume, the epoch begins again from
the first of them, the batches of finished steps are read and dropped, and the second is put in
force: the next step sees what it would have seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from laplace_metric import files
from laplace_metric.errors import FileFormatError
from laplace_metric.online.randomness import random_states, restore_states
from laplace_metric.online.run import Run, Tree
from laplace_metric.online.trees import flatten, unflatten
from laplace_metric.training.progress import Progress, Watcher

CHECKPOINT = files.Kind("checkpoint", "a training checkpoint", 1)


class Keeper(Watcher):
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
        self, run: Run, own: torch.Generator, folder: Path | None, every: int | None
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
