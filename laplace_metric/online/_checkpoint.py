"""A training on disk: written as a whole or not at all, read by the next ``fit``. No pickle.

The folder holds ``checkpoint.json`` and the safetensors file that it names (see ``io``): the
states of model, loss, optimizer and scheduler, the running curvature, the history and every random
state, as they were when the last epoch ended. The next epoch sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric.curvature._structures import Curvature
from laplace_metric.errors import FileFormatError
from laplace_metric.heads._identity import named_head
from laplace_metric.heads._locate import LocatedHead
from laplace_metric.laplace._posterior import by_marginal_likelihood
from laplace_metric.online._state import (
    StateTree,
    curvature_of,
    curvature_tensors,
    flatten,
    random_states,
    restore_states,
    shapes,
    unflatten,
)
from laplace_metric.online._step import OnlineStep, TrainedHead
from laplace_metric.training._loop import Callback, Progress

CHECKPOINT = files.FileKind("checkpoint", "a training checkpoint", 1)


class ResumableRun(Protocol):
    """State that a ``Checkpointer`` writes."""

    loader: Any
    device: torch.device

    def identity(self) -> StateTree:
        """Return the settings that a resumed run must share: plain JSON values."""

    def state(self) -> StateTree:
        """Return the state that changes, without the random states."""

    def restore(self, state: StateTree) -> None:
        """Put back what ``state`` gave, in place."""

    def epoch_done(self) -> None:
        """Before the checkpoint of a finished epoch."""

    def status(self, progress: Progress) -> str:
        """Text next to the bar."""


@dataclass
class TrainingRun:
    """A training in progress.

    Parameters
    ----------
    step : OnlineStep
        With the model, the loss, the optimizer, the curvature and the progress.
    variances, priors : list of float
        At the end of each finished epoch: mean posterior variance of the head's parameters, and
        the prior precision that was left, or chosen.
    """

    step: OnlineStep
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    loader: Any
    device: torch.device
    variances: list[float] = field(default_factory=list)
    priors: list[float] = field(default_factory=list)

    @property
    def stateful(self) -> dict[str, Any]:
        """Objects with ``state_dict`` and ``load_state_dict``; a loss may be a plain function."""
        step = self.step
        loss = step.loss if isinstance(step.loss, nn.Module) else None
        parts = ("model", "loss", "optimizer", "scheduler")
        values = (step.model, loss, step.optimizer, self.scheduler)
        return {k: v for k, v in zip(parts, values, strict=True) if v is not None}

    def identity(self) -> StateTree:
        """Return the settings that a resumed run must share: plain JSON values."""
        step, curvature = self.step, self.step.curvature
        return {
            **step.settings.to_json(),
            "head": _described(step.model, step.head),
            "decay": curvature.decay,
            "refresh": curvature.refresh,
            "samples": step.samples,
            "warmup": step.warmup,
            **step.scale.identity(),
            "names": {k: type(v).__name__ for k, v in self.stateful.items() if k != "model"},
            "loss function": getattr(step.loss, "__name__", type(step.loss).__name__),
            "model": shapes(step.model.state_dict()),
            "loader length": step.n_batches,
        }

    def state(self) -> StateTree:
        """Return the state that changes, without the random states."""
        step, running = self.step, self.step.curvature
        stale = None if running.decomposed is running.value else running.decomposed
        return {
            **{name: part.state_dict() for name, part in self.stateful.items()},
            "progress": asdict(step.progress),
            "variances": list(self.variances),
            "priors": list(self.priors),
            "prior precision": step.scale.prior_precision,
            "variance": step.variance,
            "n_updates": running.n_updates,
            "curvature": _tensors(running.value),
            "decomposed": _tensors(stale),
            "located head": None if step.trained is None else _saved_head(step.trained),
        }

    def restore(self, state: StateTree) -> None:
        """Put back what ``state`` gave, in place."""
        step = self.step
        for name, part in self.stateful.items():
            part.load_state_dict(dict(state[name]))
        for name, value in state["progress"].items():
            setattr(step.progress, name, value)
        self.variances[:], self.priors[:] = state["variances"], state["priors"]
        step.scale.prior_precision = state["prior precision"]
        step.variance = state["variance"]
        if state["located head"] is not None:
            step.trained = _restored_head(step, **state["located head"])
        step.curvature.n_updates = state["n_updates"]
        value = self._curvature(state["curvature"])
        stale = self._curvature(state["decomposed"])
        step.curvature.restore(value, value if stale is None else stale)

    def epoch_done(self) -> None:
        """Choose the prior, where the evidence does, and note it with the variance."""
        posterior, scale = self.step.posterior(), self.step.scale
        if scale.by_evidence:
            scale.prior_precision = by_marginal_likelihood(posterior)
            posterior = self.step.posterior()
        self.variances.append(float(posterior.spectrum.mean()))
        self.priors.append(posterior.prior_precision)

    def status(self, progress: Progress) -> str:
        """Loss and variance."""
        return f"loss {progress.mean_loss:.4g}, variance {self.step.variance:.3g}"

    def _curvature(self, tensors: Sequence[Tensor] | None) -> Curvature | None:
        step = self.step
        if tensors is None or step.trained is None:
            return None
        on_device = [tensor.to(self.device) for tensor in tensors]
        return curvature_of(on_device, step.settings.structure, step.trained.jacobian().layouts)


def _tensors(value: Curvature | None) -> list[Tensor] | None:
    return None if value is None else curvature_tensors(value)


def _saved_head(head: TrainedHead) -> StateTree:
    located = head.located
    return {"name": located.name, "normalized": located.normalized, "n_outputs": located.n_outputs}


def _restored_head(step: OnlineStep, name: str, normalized: bool, n_outputs: int) -> TrainedHead:
    module = named_head(step.model, name)
    if module is None:
        raise FileFormatError(f"the checkpoint is for a head {name!r}, which model lacks.")
    located = LocatedHead(name, module[0], normalized, module[1], n_outputs)
    return TrainedHead.of(located, step.settings)


def _described(model: nn.Module, head: nn.Module | str | None) -> Any:
    """A head as it was asked for: its name, or the names of its parameters."""
    if not isinstance(head, nn.Module):
        return head
    parameters = {id(p) for p in head.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in parameters]


class Checkpointer(Callback):
    """Keeps the history of a run and, with a folder, its checkpoint.

    Parameters
    ----------
    run : ResumableRun
    generator : torch.Generator
        That the weights are drawn from.
    folder : Path or None
        None: nothing is written.
    """

    def __init__(self, run: ResumableRun, generator: torch.Generator, folder: Path | None) -> None:
        self.run, self.generator, self.folder = run, generator, folder

    def begin(self, epochs: int) -> None:
        """Put back the checkpoint if there is one, else write the state before the first step."""
        if self.folder is None:
            return
        if (self.folder / CHECKPOINT.index).exists():
            self._resume(self.folder, epochs)
        else:
            self._save()

    def epoch_done(self, progress: Progress) -> None:
        self.run.epoch_done()
        self._save()

    def status(self, progress: Progress) -> str:
        return self.run.status(progress)

    def _save(self) -> None:
        if self.folder is None:
            return
        random = random_states(self.generator, self.run.loader, self.run.device)
        content, tensors = flatten({**self.run.state(), "random": random})
        identity = self.run.identity()
        files.write(self.folder, {"run": identity, "state": content}, tensors, CHECKPOINT)

    def _resume(self, folder: Path, epochs: int) -> None:
        files.tidy(folder, CHECKPOINT)  # a run that is finished already writes nothing
        content, tensors = files.read(folder, CHECKPOINT)
        if difference := files.difference(content.get("run"), self.run.identity()):
            raise FileFormatError(
                f"the checkpoint in {folder} is of another run: {difference}. Pass what it was "
                "written with, or another folder."
            )
        try:
            state = unflatten(content["state"], tensors)
            _check_epochs(folder, state["progress"], epochs)
            self.run.restore(state)
            restore_states(state["random"], self.generator, self.run.loader, self.run.device)
        except files.MALFORMED as error:
            raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _check_epochs(folder: Path, progress: StateTree, epochs: int) -> None:
    if progress["epoch"] > epochs:
        raise FileFormatError(
            f"the checkpoint in {folder} has {progress['epoch']} epochs, more than "
            f"epochs={epochs}: pass at least as many, or another folder."
        )
