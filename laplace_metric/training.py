"""Plain training of embedders, shared by examples, baselines and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count, check_function
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.inputs import ModelInput, read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._call_model import call_model
from laplace_metric.models._trained import TrainingInputs, note_training

__all__ = ["train_embedder", "train_epochs"]


def train_embedder(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss,
    *,
    epochs: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    miner: Callable[[Tensor, Tensor], Any] | None = None,
    progress: bool = False,
) -> list[float]:
    """Train an embedder with a metric loss, in place.

    The model and its parts are in train mode while it trains and get their modes back
    afterwards, also when training is interrupted: the model then holds the weights of the last
    finished step.

    Parameters
    ----------
    model : nn.Module
        Embedder to train: inputs -> embeddings [B, Z].
    loader : iterable of (inputs, labels)
        Data of an epoch, read once each epoch; `inputs` (a tensor, a tuple or a dict, as the model
        takes them) and `labels` are moved to the model's device.
    loss : callable
        Metric loss ``loss(embeddings, labels)`` -> scalar, such as a loss of
        pytorch-metric-learning; with a miner
        ``loss(embeddings, labels, miner(embeddings, labels))``.
    epochs : int
        Number of epochs, at least 1.
    optimizer : Optimizer, optional
        Optimizer of model and loss. None, the default: Adam with learning rate 1e-3 over the
        trainable parameters of both.
    scheduler : LRScheduler, optional
        Learning rate schedule, stepped at the end of each epoch. None, the default: a constant
        rate.
    miner : callable, optional
        Miner of pytorch-metric-learning, whose tuples the loss gets as its third argument. None,
        the default: no miner.
    progress : bool
        Show a progress bar. Default: False.

    Returns
    -------
    list of float
        Mean loss of each epoch, weighted by batch size.

    Raises
    ------
    InputError
        If `epochs` is below 1, neither model nor loss has a trainable parameter, or an argument
        is of another kind.
    EmptyLoaderError
        If the loader yields no batch (a generator can be read only once).
    LabelError
        If a batch has no labels, or labels of the wrong kind.
    NonFiniteError
        If the loss becomes NaN or infinite; the step is not taken.

    Examples
    --------
    >>> from pytorch_metric_learning.losses import ContrastiveLoss
    >>> x, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> losses = train_embedder(
    ...     nn.Linear(4, 2), [(x, y)], ContrastiveLoss(), epochs=2, progress=False
    ... )
    >>> len(losses)
    2
    """
    epochs = check_count("epochs", epochs)
    check_training(model, loss, optimizer, scheduler, mined=miner is not None)
    if miner is not None:
        check_function("miner", miner, "embeddings", "labels")
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    inputs = read_inputs("loader", loader, labelled=True)
    optimizer = optimizer or default_optimizer(modules)
    record = note_training(model, trained_parameters(optimizer))
    step = _make_step(model, loss, miner, optimizer, inputs.names, record)
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    with train_mode(modules):
        return train_epochs(
            step, inputs, device, epochs=epochs, scheduler=scheduler, show=progress
        ).losses


def _make_step(
    model: nn.Module,
    loss: Loss,
    miner: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer,
    names: dict[int, str],
    record: TrainingInputs,
) -> Step:
    """Return a function that takes one optimisation step on a batch and returns its loss."""

    def step(inputs: ModelInput, labels: Tensor) -> float:
        if names:  # a loss with a weight for each class counts them from 0
            raise LabelError(
                f"labels are class names ({next(iter(names.values()))!r} is one): number them from "
                "0 for a loss, e.g. by np.unique(names, return_inverse=True)[1]."
            )
        embeddings = call_model(model, inputs)
        mined = () if miner is None else (miner(embeddings, labels),)
        record.add(inputs)
        return descend(loss(embeddings, labels, *mined), optimizer)

    return step


# The loop of every training: progress, callbacks, epochs, steps, scheduler.


@dataclass
class Progress:
    """Progress of a training; plain numbers, so that it can be stored.

    Parameters
    ----------
    epoch, steps : int
        Numbers of finished epochs and of steps.
    total : float
        Loss of the running epoch, summed over its points so far.
    epoch_points : int
        Number of points of the running epoch so far.
    n_points : int
        Number of points of the last finished epoch; 0 or an estimate before that.
    losses : list of float
        Mean loss of each finished epoch, weighted by batch size.

    Examples
    --------
    >>> progress = Progress()
    >>> progress.add(2.0, 3)
    >>> progress.finish_epoch()
    >>> progress.losses, progress.n_points, progress.steps
    ([2.0], 3, 1)
    """

    epoch: int = 0
    steps: int = 0
    total: float = 0.0
    epoch_points: int = 0
    n_points: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        """Mean loss of the running epoch so far; NaN before its first step."""
        return self.total / self.epoch_points if self.epoch_points else float("nan")

    def add(self, loss: float, n_points: int) -> None:
        """Count a finished step."""
        self.total += loss * n_points
        self.epoch_points += n_points
        self.steps += 1

    def finish_epoch(self) -> None:
        """Close the running epoch."""
        self.losses.append(self.mean_loss)
        self.n_points = self.epoch_points
        self.epoch, self.total, self.epoch_points = self.epoch + 1, 0.0, 0


class Callback:
    """Hooks into a training; subclasses override those that they need."""

    def step_done(self, progress: Progress) -> None:
        """React to a finished step."""

    def epoch_done(self, progress: Progress) -> None:
        """React to a finished epoch, after the scheduler's step."""

    def status(self, progress: Progress) -> str:
        """Return text to show next to the progress bar."""
        return ""


Loss = Callable[..., Tensor]
"""``loss(embeddings, labels)`` or ``loss(embeddings, labels, indices)`` -> scalar."""

Step = Callable[[ModelInput, Tensor], float]
"""One optimisation step on (inputs, labels [B]); returns its loss."""


def train_epochs(
    step: Step,
    loader: Any,
    device: torch.device,
    *,
    epochs: int,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    show: bool = True,
    progress: Progress | None = None,
    callback: Callback | None = None,
) -> Progress:
    """Take steps until ``epochs`` are finished, from where ``progress`` says that the run stands.

    Parameters
    ----------
    step : function of (inputs, labels [B])
        Function that takes one optimisation step and returns its loss.
    loader : Inputs, or iterable of (inputs, labels)
        Data of an epoch.
    device : torch.device
        Device to which batches are moved.
    epochs : int
        Number of epochs after which the run ends.
    scheduler : LRScheduler or None
        Learning rate schedule, stepped at the end of each epoch. None, the default: a constant
        rate.
    show : bool
        Show a progress bar. Default: True.
    progress : Progress or None
        Place from which the run goes on. None, the default: the beginning.
    callback : Callback or None
        Hooks that are called after steps and epochs. None, the default: no hooks.

    Raises
    ------
    EmptyLoaderError, LabelError
        For a loader without batches or labels.

    Examples
    --------
    >>> batches = [(torch.ones(2, 1), torch.tensor([0, 1]))]
    >>> train_epochs(lambda x, y: 0.5, batches, torch.device("cpu"), epochs=2, show=False).losses
    [0.5, 0.5]
    """
    inputs = read_inputs("loader", loader, labelled=True)
    progress, callback = progress or Progress(), callback or Callback()
    while progress.epoch < epochs:
        title = f"epoch {progress.epoch + 1}/{epochs}"
        title += f", loss {progress.losses[-1]:.4g}" if progress.losses else ""

        def status(callback: Callback = callback, progress: Progress = progress) -> str:
            return callback.status(progress)

        batches = labelled_batches(inputs, device, progress=show, description=title, status=status)
        for batch, labels in batches:
            progress.add(step(batch, labels), len(labels))
            callback.step_done(progress)
        if scheduler is not None:
            scheduler.step()
        progress.finish_epoch()
        callback.epoch_done(progress)
    return progress


def descend(value: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Take one step of the optimiser down the gradient of a loss; return the loss.

    Raises
    ------
    InputError
        If the loss is no scalar that depends on a trainable parameter.
    NonFiniteError
        If the loss is NaN or infinite; the step is not taken.
    """
    number = check_loss(value)
    if not value.requires_grad:
        raise InputError("loss depends on no trainable parameter: nothing can be learnt from it.")
    optimizer.zero_grad()
    torch.autograd.backward(value)
    optimizer.step()
    return number


def check_training(
    model: Any, loss: Any, optimizer: Any, scheduler: Any, *, mined: bool = False
) -> None:
    """Check the kinds of a training's parts; ``mined``: the loss takes the tuples of a miner.

    Raises
    ------
    InputError
        For a part of another kind.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module.")
    check_function("loss", loss, "embeddings", "labels", *(["indices"] if mined else []))
    if not isinstance(optimizer, (torch.optim.Optimizer, type(None))):
        raise InputError(f"optimizer is {optimizer!r:.60}: pass a torch.optim.Optimizer.")
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau  # its step() wants a metric
    unfit = isinstance(scheduler, (type, torch.optim.Optimizer, plateau))
    if scheduler is not None and (unfit or not callable(getattr(scheduler, "step", None))):
        raise InputError(
            f"scheduler is {scheduler!r:.60}: pass one of torch.optim.lr_scheduler whose step() "
            "takes no metric."
        )


def check_loss(value: Tensor) -> float:
    """Return the loss as a number.

    Raises
    ------
    InputError
        If it is no tensor of one real number.
    NonFiniteError
        If it is NaN or infinite.
    """
    plain = isinstance(value, Tensor) and value.is_floating_point() and not value.is_meta
    if not plain or value.numel() != 1:
        what = (
            f"{value.dtype} {tuple(value.shape)} on {value.device}"
            if torch.is_tensor(value)
            else value
        )
        raise InputError(f"loss gave {what!s:.60}: let it return a floating scalar tensor.")
    number = float(value.detach())
    if not isfinite(number):
        raise NonFiniteError(
            f"loss became {number} in training. Lower the learning rate, or check the "
            "inputs for NaN."
        )
    return number


@contextmanager
def train_mode(modules: list[nn.Module]) -> Iterator[None]:
    """Put modules into train mode inside; outside, every submodule has the mode that it had."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.train()
        yield
    finally:
        for part, mode in before:
            part.training = mode


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer changes."""
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [parameter for parameter in parameters if parameter.requires_grad]


def default_optimizer(modules: list[nn.Module]) -> torch.optim.Optimizer:
    """Return Adam with learning rate 1e-3 over every trainable parameter."""
    parameters = chain.from_iterable(module.parameters() for module in modules)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise InputError("model has no parameter with requires_grad=True: nothing to train.")
    return torch.optim.Adam(trainable, lr=1e-3)
