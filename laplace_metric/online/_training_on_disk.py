"""A training on disk: written as a whole or not at all, read by the next ``fit``. No pickle.

The folder holds ``checkpoint.safetensors`` (see ``io``): the states of model, loss, optimizer and
scheduler, the running curvature, the history and every random state, as they were when the last
epoch ended. The next epoch sees what it would have seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError
from laplace_metric.inputs import ModelInput, read_inputs
from laplace_metric.online._random_states import (
    check_samplers,
    numbers_of,
    random_states,
    restore_states,
)
from laplace_metric.online._state_tree import StateTree, flatten, unflatten
from laplace_metric.training import Callback, Progress, train_epochs

CHECKPOINT = files.Kind("training", "a training checkpoint", 2)
FILE = "checkpoint.safetensors"


class ResumableRun(Callback, ABC):
    """A training that goes on from its checkpoint, to the same bits.

    Parameters
    ----------
    parts : mapping of name to module, optimizer or scheduler
        Modules, optimizers and schedulers that change in the run, by name: they have ``state_dict``
        and ``load_state_dict``.
    loader, device
        Data of an epoch, and the device to which its batches are moved.
    generator : torch.Generator
        Generator that the weights are drawn from.
    folder : Path or None
        Folder of the checkpoint. None: no checkpoint is written.
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
        self.inputs = read_inputs("loader", loader, labelled=True)
        self.generator, self.folder = generator, folder
        self.first_numbers = numbers_of(loader)
        self.begun_as: StateTree = {}
        self.progress = Progress()

    @abstractmethod
    def step(self, inputs: ModelInput, labels: Tensor) -> float:
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
        self.begun_as = self.identity()  # a schedule may move settings while it trains
        if self.folder is not None and (self.folder / FILE).exists():
            self._resume(self.folder, epochs)
        else:
            self._save()
        train_epochs(
            self.step,
            self.inputs,
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
        state["first numbers"] = self.first_numbers
        content, tensors = flatten(state)
        whole = {"run": self.begun_as, "state": content}
        files.write(self.folder / FILE, files.Part(CHECKPOINT, whole, tensors))

    def _resume(self, folder: Path, epochs: int) -> None:
        files.remove_abandoned(folder / FILE)  # a run that is finished already writes nothing
        saved = files.SavedFile(folder / FILE)
        part = saved.part(CHECKPOINT)
        content, tensors = part.content, dict(part.arrays)
        if difference := files.difference(content.get("run"), self.begun_as):
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
            check_samplers(state["random"], state["first numbers"], self.loader)
            self.first_numbers = state["first numbers"]
            for name, part in self.parts.items():
                part.load_state_dict(dict(state[name]))
            vars(self.progress).update(state["progress"])
            self.restore(state)
            restore_states(state["random"], self.generator, self.loader, self.device)
