from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn

from laplace_metric.errors import EmptyLoaderError, InputError, LabelError, NonFiniteError
from laplace_metric.training import train_embedder

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0], [2.0, 2.0], [-1.0, 1.0]])
Y = torch.tensor([0, 1, 0, 1, 0])
BATCHES = [(X[:2], Y[:2]), (X[2:], Y[2:])]


def squares(embeddings: Tensor, labels: Tensor) -> Tensor:
    """A loss with a gradient that is easy to write down."""
    return ((embeddings[:, 0] - labels) ** 2).mean()


def linear() -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    return model


def by_hand(epochs: int, decay: float = 1.0) -> tuple[Tensor, list[float]]:
    """Gradient descent on `squares`, step by step, without autograd."""
    w, rate, losses = torch.tensor([0.5, 0.5]), 0.1, []
    for _ in range(epochs):
        total = 0.0
        for x, y in BATCHES:
            residual = x @ w - y
            total += float((residual**2).sum())
            w = w - rate * 2 * x.T @ residual / len(y)
        losses.append(total / len(Y))
        rate *= decay
    return w, losses


def test_steps_losses_and_schedule_match_those_by_hand() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = train_embedder(
        model, BATCHES, squares, epochs=3, optimizer=optimizer, scheduler=scheduler, progress=False
    )
    w, expected = by_hand(3, decay=0.5)
    torch.testing.assert_close(model.weight.detach()[0], w)
    assert losses == pytest.approx(expected)


def test_default_optimizer_trains_the_loss_too() -> None:
    model, loss = nn.Linear(2, 3), ArcFaceLoss(2, 3)
    before = [model.weight.detach().clone(), loss.W.detach().clone()]
    train_embedder(model, BATCHES, loss, epochs=1, progress=False)
    for old, new in zip(before, (model.weight, loss.W), strict=True):
        assert (old != new).all()
        assert float((old - new).abs().max().detach()) < 2.1e-3  # two steps of Adam at 1e-3


def test_frozen_parameters_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    train_embedder(model, BATCHES, squares, epochs=1, progress=False)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(InputError, match="requires_grad"):
        train_embedder(model.requires_grad_(False), BATCHES, squares, epochs=1)


def test_miner_gets_the_batch_and_the_loss_its_pairs() -> None:
    mined: list[Any] = []
    miner = PairMarginMiner()

    def spy(embeddings: Tensor, labels: Tensor, pairs: Any) -> Tensor:
        mined.append((pairs, miner(embeddings, labels)))
        return embeddings.square().mean()

    train_embedder(nn.Linear(2, 2), BATCHES, spy, epochs=1, miner=miner, progress=False)
    assert len(mined) == 2
    for pairs, expected in mined:
        assert all(torch.equal(a, b) for a, b in zip(pairs, expected, strict=True))


class Recorder(nn.Module):
    """Remembers the mode of its parts in each call; interrupts or blows up on demand."""

    def __init__(self, fail: BaseException | None = None) -> None:
        super().__init__()
        self.first, self.second = linear(), nn.BatchNorm1d(1)
        self.fail, self.modes = fail, list[tuple[bool, ...]]()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, self.second.training))
        if self.fail is not None:
            raise self.fail
        return self.first(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fail", [None, KeyboardInterrupt(), RuntimeError("broken")])
def test_every_part_gets_its_mode_back(fail: BaseException | None) -> None:
    model = Recorder(fail)
    model.train()
    model.second.eval()
    with nullcontext() if fail is None else pytest.raises(type(fail)):
        train_embedder(model, BATCHES, squares, epochs=1, progress=False)
    assert model.modes[0] == (True, True)
    assert (model.training, model.first.training, model.second.training) == (True, True, False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_takes_no_step(value: float) -> None:
    model = linear()
    with pytest.raises(NonFiniteError, match="loss became"):
        train_embedder(model, BATCHES, lambda z, y: z.sum() * value, epochs=1, progress=False)
    assert torch.equal(model.weight, linear().weight)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="epochs=0"):
        train_embedder(linear(), BATCHES, squares, epochs=0)
    with pytest.raises(EmptyLoaderError):
        train_embedder(linear(), [], squares, epochs=1, progress=False)
    with pytest.raises(EmptyLoaderError):  # a generator is empty in the second epoch
        train_embedder(linear(), iter(BATCHES), squares, epochs=2, progress=False)
    with pytest.raises(LabelError):
        train_embedder(linear(), [X], squares, epochs=1, progress=False)
