"""One step of online Laplace: sample heads, descend the expected loss, take in the curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature import ContrastiveLoss, batch_curvature
from laplace_metric.curvature.structures import Curvature
from laplace_metric.errors import HeadError
from laplace_metric.laplace import Posterior, Settings
from laplace_metric.models import Inputs
from laplace_metric.models.heads import APPEND, LocatedHead, capture, find_head
from laplace_metric.models.jacobians import HeadJacobian, jacobian_of
from laplace_metric.online._average import RunningCurvature
from laplace_metric.online._perturbed import SampledPass, detached, sampled_jacobians, sampled_pass
from laplace_metric.training import Loss, Progress, check_loss, descend


@dataclass(frozen=True)
class HeadPlace:
    """The head and the number of its outputs, found on the first batch."""

    head: LocatedHead
    n_outputs: int

    @classmethod
    def find(cls, model: nn.Module, inputs: Inputs, head: nn.Module | str | None) -> HeadPlace:
        """See ``find_head``.

        Raises
        ------
        HeadError
            Also for a head that would be appended: it would not be trained.
        """
        found = find_head(model, inputs, head)
        if found.parts is None:
            raise HeadError(
                f"head={APPEND!r} is not part of the model, so training cannot learn it: add a "
                "linear layer to the model and train that."
            )
        return cls(found, capture(model, found, inputs).raw.shape[1])

    def jacobian(self, backend: str) -> HeadJacobian:
        """The head at the mean weights."""
        return jacobian_of(self.head.module, self.n_outputs, backend)


@dataclass
class OnlineStep:
    """Callable as a ``Step`` of ``train_epochs``.

    Parameters
    ----------
    head : what ``find_head`` is asked for on the first batch
    samples : int
        S, heads drawn a step.
    n_batches : int or None
        Length of the loader where it has one.
    """

    model: nn.Module
    head: nn.Module | str | None
    loss: Loss
    optimizer: torch.optim.Optimizer
    settings: Settings
    samples: int
    curvature: RunningCurvature
    generator: torch.Generator
    progress: Progress
    n_batches: int | None = None
    place: HeadPlace | None = None
    variance: float = float("nan")

    def __call__(self, inputs: Inputs, labels: Tensor) -> float:
        """Descend E_q[L] and update H with E_q[h], both at the same sampled heads."""
        self.place = self.place or HeadPlace.find(self.model, inputs, self.head)
        if not self.progress.n_points and self.n_batches is not None:
            self.progress.n_points = self.n_batches * len(labels)  # until the first epoch is over
        seen = sampled_pass(self.model, self.place.head, inputs, self._offsets(len(labels)))
        mined = [self._mine(f, labels) for f in seen.embeddings]
        values = [
            self.loss(f, labels, *pairs) for f, pairs in zip(seen.embeddings, mined, strict=True)
        ]
        value = torch.stack(values).mean()
        check_loss(value)
        measured = self._measure(seen, labels, mined)  # before the weights move
        number = descend(value, self.optimizer)
        if measured is not None:
            self.curvature.update(measured)
        return number

    def n_effective(self, n_batch: int = 0) -> float:
        """As given, or the points of an epoch: what the loader's length says in the first one, the
        points so far for a loader without a length.
        """
        if self.settings.n_effective is not None:
            return self.settings.n_effective
        return float(max(self.progress.n_points, self.progress.epoch_points + n_batch))

    def posterior(self, n_batch: int = 0) -> Posterior:
        """The one that a step on ``n_batch`` more points would draw from."""
        assert self.place is not None
        mean = self.place.jacobian(self.settings.backend).parameters
        tau = self.settings.prior_precision
        return Posterior(mean, self.curvature.spectral(mean), self.n_effective(n_batch), tau)

    @full_precision()
    def _offsets(self, n_batch: int) -> Tensor:
        """eps [S, P] of the present posterior; drawn on the CPU, so that devices agree."""
        posterior = self.posterior(n_batch)
        self.variance = float(posterior.spectrum.mean())  # trace / P: Q is orthogonal
        mean = posterior.mean
        shape = (self.samples, len(mean))
        noise = torch.randn(shape, generator=self.generator, dtype=mean.dtype).to(mean.device)
        return posterior.basis.from_eigenbasis(noise * posterior.spectrum.sqrt())

    def _mine(self, embeddings: Tensor, labels: Tensor) -> tuple[Any, ...]:
        """(index tuple,) of the miner, or () for every pair of the batch."""
        miner = self.settings.pairs
        return (miner(embeddings, labels),) if callable(miner) else ()

    def _contrast(self) -> ContrastiveLoss:
        assert self.place is not None
        return self.settings.loss(normalized=self.place.head.normalized)

    @full_precision()
    def _measure(
        self, seen: SampledPass, labels: Tensor, mined: list[tuple[Any, ...]]
    ) -> Curvature | None:
        """E_q[h]; None for a batch of one class, which contrasts nothing."""
        if not mined[0] and len(labels.unique()) < 2:
            return None
        assert self.place is not None
        n_outputs, backend = self.place.n_outputs, self.settings.backend
        h = detached(seen.features)
        total: Any = None
        for head, pairs in zip(
            sampled_jacobians(self.place.head, seen, n_outputs, backend), mined, strict=True
        ):
            value: Any = self._measure_one(h, head, labels, pairs)
            total = value if total is None else total + value
        return total if len(mined) == 1 else total.scaled(1 / len(mined))

    def _measure_one(
        self, h: Tensor, head: HeadJacobian, labels: Tensor, pairs: tuple[Any, ...]
    ) -> Curvature:
        loss, structure = self._contrast(), self.settings.structure
        if not pairs:
            return batch_curvature(h, head, loss, structure, labels=labels)
        indices = tuple(index.to(h.device) for index in pairs[0])
        return batch_curvature(h, head, loss, structure, indices_tuple=indices)
