"""A predictor of failures on frozen embeddings (Lafon, Karmim et al. 2025, ViLU).

    n(x) = the item nearest to x,   a(x) = sum_j softmax_j(t V x . W m_j) m_j
    u(x) = sigmoid(g(x, n(x), a(x)))                g a perceptron, V and W the identity at first
    loss = -mean w_i [ e_i log u_i + (1 - e_i) log(1 - u_i) ],   e_i = 1 where the nearest is wrong
    w_i = 1 where it is right, else log(1 + acc / (1 - acc)) = -log(share of errors)

("ViLU: Learning Vision-Language Uncertainties for Failure Prediction", ICCV 2025, arXiv
2507.07620.) There the candidates m_j are the texts of the classes, n the predicted one and a an
attention over all of them; here they are the items of the gallery. It is no predictor of a loss:
the size of an error does not count, only whether there is one.

The candidates of ``fit`` are the other training items (an item is not its own candidate), and those
of a query are the training items until ``among(loader)`` gives others, as new texts do in the
paper. acc is that of all training items: published code has that of a batch, which is infinite or
zero where all of a batch are right or wrong. What the network learnt by heart has few errors to
learn from: fit on labelled inputs that did not train it, if there are any.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes, Training
from baselines.base.heads import perceptron
from baselines.base.neighbours import unit_rows
from baselines.base.parts import vectors as vectors_of
from baselines.base.settings import check_counts, check_positive
from baselines.frozen_loss_prediction import retrieval_losses
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs import read_inputs
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of
from laplace_metric.training import descend


def weighted_failure_loss(logits: Tensor, failed: Tensor) -> Tensor:
    """Compute the weighted binary cross-entropy of whether an item failed.

    Parameters
    ----------
    logits : Tensor [B]
        Logits of a failure.
    failed : bool Tensor [B]
        True where the nearest item is of another class; some, but not all.

    Returns
    -------
    Tensor, scalar
        Mean in nats; the weight of a failure is ``-log mean(failed)``.

    Raises
    ------
    InputError
        For other shapes, and items that all failed or all did not.

    Examples
    --------
    >>> failed = torch.tensor([True, False, False, False])
    >>> weighted_failure_loss(torch.zeros(4), failed)  # log 2 (3 + log 4) / 4
    tensor(0.7601)
    """
    return _weighted(logits, failed, failure_weight(failed))


def failure_weight(failed: Tensor) -> float:
    """Return ``-log mean(failed)``, the weight of a failure.

    Raises
    ------
    InputError
        If no item failed, or all did.

    Examples
    --------
    >>> round(failure_weight(torch.tensor([True, False])), 4)
    0.6931
    """
    share = float(failed.double().mean())
    if not 0 < share < 1:
        raise InputError(
            f"the nearest item is {'wrong' if share else 'right'} for all {len(failed)} items: a "
            "predictor of failures needs both. Fit on more inputs, best on some that did not train "
            "the network."
        )
    return -math.log(share)


def _weighted(logits: Tensor, failed: Tensor, weight: float) -> Tensor:
    if logits.ndim != 1 or logits.shape != failed.shape:
        raise InputError(
            f"logits has shape {tuple(logits.shape)}, failed {tuple(failed.shape)}: pass one "
            "number for each item."
        )
    weights = torch.where(failed, weight, 1.0).to(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, failed.to(logits), weights)


class FailureHead(nn.Module):
    """Logits of a failure [B] from vectors [B, Z] and candidates [N, Z].

    Parameters
    ----------
    size : int
        Dimension Z of both.
    hidden : int
        Width of the two hidden layers. Default: 256.
    inverse_temperature : float
        Factor t of the attention at the start; it is learnt. Default: 20.

    Examples
    --------
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> FailureHead(3)(torch.eye(3)[:2], torch.eye(3)).shape
    torch.Size([2])
    """

    def __init__(self, size: int, hidden: int = 256, inverse_temperature: float = 20.0) -> None:
        super().__init__()
        self.query, self.item = (nn.Linear(size, size, bias=False) for _ in range(2))
        for layer in (self.query, self.item):
            nn.init.eye_(layer.weight)
        self.log_t = nn.Parameter(torch.tensor(math.log(inverse_temperature)))
        self.network = perceptron(3 * size, hidden, 1)

    def forward(self, x: Tensor, items: Tensor, own: Tensor | None = None) -> Tensor:
        """Map x [B, Z]; ``own`` [B] are rows of the items that are the inputs themselves."""
        nearness = x @ items.mT - items.square().sum(1) / 2  # largest where the distance is least
        attention = self.log_t.exp() * (self.query(x) @ self.item(items).mT)
        if own is not None:
            rows = torch.arange(len(x), device=x.device)
            hidden = torch.zeros_like(attention, dtype=torch.bool)
            hidden[rows, own] = True
            nearness, attention = (v.masked_fill(hidden, -math.inf) for v in (nearness, attention))
        nearest = items[nearness.argmax(1)]
        together = torch.cat([x, nearest, attention.softmax(1) @ items], dim=1)
        return self.network(together)[:, 0]


@dataclass(eq=False, kw_only=True)
class FailurePredictor(Detector):
    """A small head that predicts whether the nearest item is wrong; ``fit`` costs N^2 Z products.

    ``uncertainty`` is the predicted probability of a failure in (0, 1), under the weights of the
    loss: an order, not a calibrated probability. A query costs one forward pass and N Z products.
    The embeddings stay as they are.

    Parameters
    ----------
    hidden : int
        Width of the two hidden layers. Default: 256.
    inverse_temperature : float > 0
        Factor of the attention at the start. Default: 20.
    batch_size : int
        Number of items of a step. Default: 128.
    training : Training
        Settings of the training of the head. Default: ``Training()``.

    Attributes
    ----------
    losses_ : list of float
        Mean weighted cross-entropy of each epoch.

    Raises
    ------
    InputError
        For settings out of range; from ``fit``, if the nearest item is right for all, or for none.
    LabelError
        From ``fit``, for a single class, or if no two items share one.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> x, y = torch.randn(60, 4, generator=g), torch.arange(60) % 3
    >>> method = FailurePredictor(nn.Linear(4, 2), hidden=8).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    >>> method.among([(x[:9], y[:9])])(x[9:]).uncertainty.shape  # of a search in nine items
    torch.Size([51])
    """

    hidden: int = 256
    inverse_temperature: float = 20.0
    batch_size: int = 128
    training: Training = Training()  # noqa: RUF009 (frozen)
    losses_: list[float] = field(default_factory=list, init=False, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "hidden", "batch_size")
        check_positive(self, "inverse_temperature")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the candidates, and the head."""
        head = FailureHead(sizes.width(self.on), self.hidden, self.inverse_temperature)
        return {"candidates": Memory("vectors", "scale"), "predictor": head}

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> FailurePredictor:
        """Gather a loader of ``(inputs, labels)``, and train the head.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
        """
        generator = torch.Generator().manual_seed(self.training.seed)
        with own_randomness(generator, device_of(self.model)):
            super().fit(loader, progress=progress)
        return self

    def among(self, loader: Iterable[Any]) -> FailurePredictor:
        """Return the same predictor for searches among other items; this one stays as it is.

        Parameters
        ----------
        loader : iterable of (inputs, labels)
            Items of the gallery; their labels are not used.

        Raises
        ------
        NotFittedError
            Before ``fit``; and what ``fit`` raises for the loader.
        """
        data, fitted = read_inputs("loader", loader, labelled=True), self.fitted_
        batches = labelled_batches(data, device_of(self.model), progress=False, description="Items")
        found = [self._compared(vectors_of(self.activations(x), self.on)) for x, _ in batches]
        other = copy.copy(self)
        parts = copy.deepcopy(fitted.parts)
        memory: Any = parts["candidates"]
        memory.store(vectors=torch.cat(found) / memory.scale)
        other._fitted = replace(fitted, parts=parts)
        return other

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """See which training items find a wrong one among the others, and learn to predict it."""
        x = self._compared(vectors)
        losses = retrieval_losses(x, labels)
        counted = losses.isfinite().nonzero()[:, 0]  # an item alone in its class can only fail
        if not len(counted):
            raise LabelError("no two items share a class: add some.")
        failed = losses[counted] > 0
        weight = failure_weight(failed)
        # one number for all coordinates: what is nearest stays so
        scale = x.double().square().sum(1).mean().sqrt().to(x)
        memory: Any = self.parts["candidates"]
        memory.store(vectors=x / scale, scale=scale)
        with torch.enable_grad():
            self.losses_ = self._train(counted, failed, weight)

    def score(self, vectors: Tensor) -> Tensor:
        """Return the predicted probability of a failure [B]."""
        memory: Any = self.parts["candidates"]
        logits = self.parts["predictor"](self._compared(vectors) / memory.scale, memory.vectors)
        return logits.sigmoid()

    def _compared(self, vectors: Tensor) -> Tensor:
        return unit_rows(vectors) if self.spherical else vectors

    def _train(self, counted: Tensor, failed: Tensor, weight: float) -> list[float]:
        head, memory = self.parts["predictor"], self.parts["candidates"]
        items: Any = memory.vectors
        optimizer, scheduler = self.training.optimize(head.parameters())
        epochs = []
        for _ in range(self.training.epochs):
            order = torch.randperm(len(counted)).to(counted.device)
            total = 0.0
            for chosen in order.split(self.batch_size):
                rows = counted[chosen]
                loss = _weighted(head(items[rows], items, rows), failed[chosen], weight)
                total += descend(loss, optimizer) * len(rows)
            scheduler.step()
            epochs.append(total / len(counted))
        return epochs
