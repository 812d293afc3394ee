"""One training loop for embedders, shared by examples, baselines and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from laplace_metric.errors import EmptyLoaderError, InputError, NonFiniteError

Loader = Collection[Any] | Iterable[Any]
Loss = Callable[..., Tensor]


def train_embedder(
    model: nn.Module,
    loader: Loader,
    loss: Loss,
    *,
    epochs: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    miner: Callable[[Tensor, Tensor], Any] | None = None,
    progress: bool = True,
) -> list[float]:
    """Train an embedder with a metric loss, in place.

    The model is in train mode while it trains and gets its mode back afterwards, also when
    training is interrupted: it then holds the weights of the last finished step.

    Parameters
    ----------
    model : nn.Module
        Inputs -> embeddings [B, Z].
    loader : iterable of (inputs, labels)
        Gone through once an epoch; `inputs` and `labels` are moved to the model's device.
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
        If the loader yields no batch.
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
    modes = [module.training for module in modules]
    step = _make_step(model, loss, miner, optimizer)
    losses: list[float] = []
    try:
        for module in modules:
            module.train()
        for epoch in range(epochs):
            losses.append(_train_epoch(step, loader, f"epoch {epoch + 1}/{epochs}", progress))
            if scheduler is not None:
                scheduler.step()
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.train(mode)
    return losses


def _default_optimizer(modules: list[nn.Module]) -> torch.optim.Optimizer:
    parameters = chain.from_iterable(module.parameters() for module in modules)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise InputError("model has no parameter with requires_grad=True: nothing to train.")
    return torch.optim.Adam(trainable, lr=1e-3)


def _make_step(
    model: nn.Module, loss: Loss, miner: Callable[..., Any] | None, optimizer: torch.optim.Optimizer
) -> Callable[[Any, Tensor], float]:
    """One optimisation step on a batch, returning its loss."""
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device

    def step(inputs: Any, labels: Tensor) -> float:
        labels = labels.to(device)
        embeddings = model(inputs.to(device))
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
    step: Callable[[Any, Tensor], float], loader: Loader, title: str, progress: bool
) -> float:
    total, seen = 0.0, 0
    with tqdm(loader, desc=title, disable=not progress, leave=False) as bar:
        for inputs, labels in bar:
            total += step(inputs, labels) * len(labels)
            seen += len(labels)
            bar.set_postfix(loss=f"{total / seen:.4f}", refresh=False)
    if not seen:
        raise EmptyLoaderError("loader yielded no batch. A generator can be read only once.")
    return total / seen
