"""Loss prediction on a frozen embedder (Kirchhof et al. 2024, "Pretrained Visual Uncertainties").

    u(x) = softplus(m(x))           m a perceptron on the embedder's vectors, which stay as they are
    loss = mean over random pairs (i, j) of  max(0, margin - sign(l_i - l_j) (u_i - u_j))

(arXiv 2402.16569; the ranking loss of Yoo and Kweon 2019, eq. 2.) The head learns the
order of the losses l, not their size. Two items of the same loss have no order and do not count;
published code takes the second for the larger.

The paper's l is the cross-entropy of a classifier; an embedder has none. What it does is find the
nearest item, so l_i is by how much item i finds the wrong class, among all other training items:

    l_i = min_{j != i, y_j = y_i} |z_i - z_j| - min_{y_j != y_i} |z_i - z_j|

z of unit length where embeddings are compared by direction. ``l_i > 0`` is an error of the nearest
neighbour. It has a size (an error alone is 0 or 1: most pairs would have no order), no temperature
has to be chosen, and by leaving i out it is no loss at distance 0 of itself. An item that is alone
in its class would be wrong with any embedding: it has no loss, but is a neighbour of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes, Training
from baselines.base.heads import perceptron
from baselines.base.neighbours import unit_rows
from baselines.base.settings import check_counts, check_positive
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.errors import InputError, LabelError
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import device_of
from laplace_metric.training import descend

ROWS = 1024
"""Training vectors that are compared with all others at once."""


@dataclass(eq=False, kw_only=True)
class FrozenLossPrediction(Detector):
    """A small head that predicts the order of retrieval losses; costs N^2 Z products in ``fit``.

    ``uncertainty`` is u > 0, without unit: only its order means something. The model is used as it
    is, and ``fit`` draws from ``training.seed`` alone.

    Parameters
    ----------
    margin : float > 0
        Difference of u that the loss asks for within a pair; 0.1 as in the paper's code. Default:
        0.1.
    hidden : int
        Width of the two hidden layers, with leaky ReLUs; the paper's code has 512 in three.
        Default: 512.
    batch_size : int
        Number of items of a batch, at least 2; a batch of B is B / 2 pairs. Default: 128.
    training : Training
        Settings of the training of the head. Default: ``Training()``.

    Attributes
    ----------
    losses_ : list of float
        Mean ranking loss of each epoch.

    Raises
    ------
    InputError
        For settings out of range.
    LabelError
        From ``fit``, for a single class, or if fewer than two items share their class with another.

    Notes
    -----
    Vectors are standardised by dimension before they enter the head (the paper's
    transformers end with a layer norm). A dimension that varies by rounding alone
    (a millionth of its mean) is only centred.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = FrozenLossPrediction(nn.Linear(4, 2), hidden=8).fit([(x, y)], progress=False)
    >>> method(x).uncertainty.shape
    torch.Size([60])
    """

    margin: float = 0.1
    hidden: int = 512
    batch_size: int = 128
    training: Training = Training()  # noqa: RUF009 (frozen)
    losses_: list[float] = field(default_factory=list, init=False, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "margin")
        check_counts(self, "hidden")
        if self.batch_size < 2:
            raise InputError(f"batch_size={self.batch_size!r}: pass an integer of at least 2.")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return mean and spread of the vectors, and the head."""
        network = perceptron(sizes.width(self.on), self.hidden, 1, nn.LeakyReLU)
        return {"statistics": Memory("mean", "scale"), "predictor": network}

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> FrozenLossPrediction:
        """Gather a loader of ``(inputs, labels)``, and train the head.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
        """
        generator = torch.Generator().manual_seed(self.training.seed)
        with own_randomness(generator, device_of(self.model)):
            super().fit(loader, progress=progress)
        return self

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Compute each training item's loss from the others, and learn to predict their order.

        Raises
        ------
        LabelError
            If there are no losses to compare.
        """
        losses = retrieval_losses(self._compared(vectors), labels).to(vectors)
        counted = losses.isfinite()
        if int(counted.sum()) < 2:
            raise LabelError("fewer than two items share their class with another: add some.")
        statistics = self.parts["statistics"]
        assert isinstance(statistics, Memory)
        spread, mean = torch.std_mean(vectors.double(), dim=0, correction=0)
        scale = torch.where(spread > 1e-6 * mean.abs(), spread, 1)
        statistics.store(mean=mean.to(vectors), scale=scale.to(vectors))
        with torch.enable_grad():
            self.losses_ = self._train(vectors[counted], losses[counted])

    def score(self, vectors: Tensor) -> Tensor:
        """Return the predicted loss u [B]."""
        statistics: Any = self.parts["statistics"]
        standard = (vectors - statistics.mean) / statistics.scale
        return nn.functional.softplus(self.parts["predictor"](standard)[:, 0])

    def _compared(self, vectors: Tensor) -> Tensor:
        """Return the embeddings [N, Z] as they are compared, of vectors [N, Z] or [N, D]."""
        head = self.fitted_.head
        if self.on == "features":
            with evaluation_mode(head.module):
                vectors = head.module(vectors.to(next(head.module.parameters())))
        return unit_rows(vectors.double()) if self.spherical or head.normalized else vectors

    def _train(self, vectors: Tensor, losses: Tensor) -> list[float]:
        optimizer, scheduler = self.training.optimize(self.parts["predictor"].parameters())
        epochs = []
        for _ in range(self.training.epochs):
            order = torch.randperm(len(losses)).to(losses.device)
            batches = [rows for rows in order.split(self.batch_size) if len(rows) > 1]
            steps = [
                descend(
                    ranking_loss(self.score(vectors[rows]), losses[rows], self.margin), optimizer
                )
                for rows in batches
            ]
            scheduler.step()
            epochs.append(math.fsum(steps) / len(steps))
        return epochs


def ranking_loss(predicted: Tensor, losses: Tensor, margin: float) -> Tensor:
    """Compute ``mean max(0, margin - sign(l_i - l_j) (u_i - u_j))`` of rows 0 and 1, 2 and 3, etc.

    Parameters
    ----------
    predicted, losses : Tensor [B]
        Predictions u and losses l; the last of an odd number has no partner.
    margin : float > 0
        Difference of u that the loss asks for within a pair.

    Returns
    -------
    Tensor, scalar
        Mean over the pairs; 0 if no pair has an order.

    Raises
    ------
    InputError
        For other shapes.

    Examples
    --------
    >>> ranking_loss(torch.tensor([0.5, 0.0, 7.0, 0.0]), torch.tensor([1.0, 2, 3, 3]), 0.1)
    tensor(0.6000)
    """
    if predicted.ndim != 1 or predicted.shape != losses.shape:
        raise InputError(
            f"predicted has shape {tuple(predicted.shape)}, losses {tuple(losses.shape)}: pass one "
            "number for each item."
        )
    n_pairs = len(losses) // 2
    u, l = (values[: 2 * n_pairs].view(n_pairs, 2) for values in (predicted, losses))  # noqa: E741
    order = (l[:, 0] - l[:, 1]).sign()
    hinge = (margin - order * (u[:, 0] - u[:, 1])).clamp_min(0) * order.abs()
    return hinge.sum() / order.abs().sum().clamp_min(1)


def retrieval_losses(x: Tensor, labels: Tensor) -> Tensor:
    """Compute ``min_{j != i, y_j = y_i} |x_i - x_j| - min_{y_j != y_i} |x_i - x_j|`` of each item.

    Parameters
    ----------
    x : Tensor [N, Z]
        Vectors of the items.
    labels : Tensor [N]
        Class of each item.

    Returns
    -------
    Tensor [N]
        Loss of each item in float64; above 0 where the nearest other item is of another class,
        infinite for an item that is alone in its class.

    Raises
    ------
    LabelError
        For a single class.

    Examples
    --------
    >>> x, labels = torch.tensor([[0.0], [1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1, 2])
    >>> retrieval_losses(x, labels)
    tensor([-2., -1., inf, inf], dtype=torch.float64)
    """
    if bool((labels == labels[0]).all()):
        raise LabelError("labels hold a single class: give two or more.")
    x = x.double()
    x = x - x.mean(0)  # distances stay, and what they cancel gets small
    half_squares = x.square().sum(1) / 2
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(ROWS):
        similarity = x[rows] @ x.T - half_squares  # largest where the distance is smallest
        similarity[torch.arange(len(rows), device=x.device), rows] = -math.inf
        same = labels[rows, None] == labels
        near, far = (similarity.masked_fill(mask, -math.inf).max(1) for mask in (~same, same))
        distances = [(x[rows] - x[best.indices]).norm(dim=1) for best in (near, far)]
        parts.append(distances[0].masked_fill(near.values == -math.inf, math.inf) - distances[1])
    return torch.cat(parts)
