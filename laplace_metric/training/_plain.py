"""Plain training of embedders, shared by examples, baselines and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import check_count, check_function
from laplace_metric.errors import LabelError
from laplace_metric.models import Inputs, call_model
from laplace_metric.training._loop import (
    Loss,
    Step,
    check_training,
    default_optimizer,
    descend,
    train_epochs,
    train_mode,
)


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
    names = dict[int, str]()
    step = _make_step(model, loss, miner, optimizer or default_optimizer(modules), names)
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    with train_mode(modules):
        return train_epochs(
            step, loader, device, epochs=epochs, scheduler=scheduler, show=progress, names=names
        ).losses


def _make_step(
    model: nn.Module,
    loss: Loss,
    miner: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer,
    names: dict[int, str],
) -> Step:
    """One optimisation step on a batch, returning its loss."""

    def step(inputs: Inputs, labels: Tensor) -> float:
        if names:  # a loss with a weight for each class counts them from 0
            raise LabelError(
                f"labels are class names ({next(iter(names.values()))!r} is one): number them from "
                "0 for a loss, e.g. by np.unique(names, return_inverse=True)[1]."
            )
        embeddings = call_model(model, inputs)
        mined = () if miner is None else (miner(embeddings, labels),)
        return descend(loss(embeddings, labels, *mined), optimizer)

    return step
