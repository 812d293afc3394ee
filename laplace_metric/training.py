"""One training loop for embedders, shared by examples, baselines and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.batches import Inputs, call_model, labelled_batches
from laplace_metric.errors import InputError, NonFiniteError

Loss = Callable[..., Tensor]


def train_embedder(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss,
    *,
    epochs: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    miner: Callable[[Tensor, Tensor], Any] | None = None,
    progress: bool = True,
) -> list[float]:
    """Train an embedder with a metric loss, in place.

    The model and its parts are in train mode while it trains and get their modes back
    afterwards, also when training is interrupted: the model then holds the weights of the last
    finished step.

    Parameters
    ----------
    model : nn.Module
        Inputs -> embeddings [B, Z].
    loader : iterable of (inputs, labels)
        Gone through once an epoch; `inputs` (a tensor, a tuple or a dict, as the model takes
        them) and `labels` are moved to the model's device.
    loss : callable
        ``loss(embeddings, labels)`` -> scalar, such as a loss of pytorch-metric-learning;
        with a miner ``loss(embeddings, labels, miner(embeddings, labels))``.
    epochs : int
        At least 1.
    optimizer : Optimizer, optional
        Default: Adam with learning rate 1e-3 over the trainable parameters of model and loss.
    scheduler : LRScheduler, optional
        Stepped at the end of each epoch.
    miner : callable, optional
        A miner of pytorch-metric-learning.
    progress : bool
        Show a bar.

    Returns
    -------
    list of float
        Mean loss of each epoch, weighted by batch size.

    Raises
    ------
    InputError
        If `epochs` is below 1, or neither model nor loss has a trainable parameter.
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
    if epochs < 1:
        raise InputError(f"epochs={epochs} must be at least 1.")
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    optimizer = optimizer or _default_optimizer(modules)
    step = _make_step(model, loss, miner, optimizer)
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    losses: list[float] = []
    with _train_mode(modules):
        for epoch in range(epochs):
            title = f"epoch {epoch + 1}/{epochs}" + (f", loss {losses[-1]:.4g}" if epoch else "")
            batches = labelled_batches(loader, device, progress=progress, description=title)
            losses.append(_train_epoch(step, batches))
            if scheduler is not None:
                scheduler.step()
    return losses


@contextmanager
def _train_mode(modules: list[nn.Module]) -> Iterator[None]:
    """Train mode inside; outside, every submodule has the mode that it had."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.train()
        yield
    finally:
        for part, mode in before:
            part.training = mode


def _default_optimizer(modules: list[nn.Module]) -> torch.optim.Optimizer:
    parameters = chain.from_iterable(module.parameters() for module in modules)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise InputError("model has no parameter with requires_grad=True: nothing to train.")
    return torch.optim.Adam(trainable, lr=1e-3)


def _make_step(
    model: nn.Module, loss: Loss, miner: Callable[..., Any] | None, optimizer: torch.optim.Optimizer
) -> Callable[[Inputs, Tensor], float]:
    """One optimisation step on a batch, returning its loss."""

    def step(inputs: Inputs, labels: Tensor) -> float:
        embeddings = call_model(model, inputs)
        mined = () if miner is None else (miner(embeddings, labels),)
        value = loss(embeddings, labels, *mined)
        number = float(value.detach())
        if not isfinite(number):
            raise NonFiniteError(
                f"loss became {number} in training. Lower the learning rate, or check the "
                "inputs for NaN."
            )
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        return number

    return step


def _train_epoch(
    step: Callable[[Inputs, Tensor], float], batches: Iterable[tuple[Inputs, Tensor]]
) -> float:
    """Go through the batches once; the mean loss."""
    total, seen = 0.0, 0
    for inputs, labels in batches:
        total += step(inputs, labels) * len(labels)
        seen += len(labels)
    return total / seen
