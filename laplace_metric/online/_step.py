"""One step of online Laplace: sample heads, descend the expected loss, update the curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss, batch_curvature
from laplace_metric.curvature.structures import Curvature
from laplace_metric.errors import HeadError, InputError
from laplace_metric.laplace import Posterior, Settings
from laplace_metric.models import Inputs
from laplace_metric.models.heads import APPEND, LocatedHead, find_head
from laplace_metric.models.jacobians import HeadJacobian, jacobian_of
from laplace_metric.online._average import RunningCurvature
from laplace_metric.online._perturbed import SampledPass, sampled_pass, with_parameters
from laplace_metric.online._scale import Scale
from laplace_metric.training import Loss, Progress, check_loss, check_loss_type, descend


@dataclass(frozen=True)
class TrainedHead:
    """The head, and the loss whose curvature is taken.

    Known from the first batch on.
    """

    located: LocatedHead
    contrast: ContrastiveLoss
    backend: str

    @classmethod
    def of(cls, located: LocatedHead, settings: Settings) -> TrainedHead:
        """A head that is known, with the loss of its settings."""
        contrast = settings.loss(normalized=located.normalized)
        return cls(located, contrast, settings.backend)

    @classmethod
    def find(
        cls, model: nn.Module, inputs: Inputs, head: nn.Module | str | None, settings: Settings
    ) -> TrainedHead:
        """See ``find_head``.

        Raises
        ------
        HeadError
            Also for a head that would be appended: it would not be trained.
        """
        located = find_head(model, inputs, head)
        if located.parts is None:
            raise HeadError(
                f"head={APPEND!r} is not part of the model, so training cannot learn it: add a "
                "linear layer to the model and train that."
            )
        return cls.of(located, settings)

    def jacobian(self) -> HeadJacobian:
        """The Jacobians of the head at the mean weights."""
        return jacobian_of(self.located.module, self.located.n_outputs, self.backend)

    def jacobians(self, sampled: SampledPass) -> list[HeadJacobian]:
        """The Jacobians of the head at each sample of a pass."""
        modules = [with_parameters(self.located.module, theta) for theta in sampled.parameters]
        return [jacobian_of(module, self.located.n_outputs, self.backend) for module in modules]


@dataclass
class OnlineStep:
    """Callable as a ``Step`` of ``train_epochs``.

    Parameters
    ----------
    head : what ``find_head`` is asked for on the first batch
    scale : Scale
        Of the curvature and of the prior.
    samples : int
        S, heads drawn a step.
    warmup : int
        First epochs, at the mean weights.
    n_batches : int or None
        Length of the loader where it has one.
    trained : TrainedHead or None
        None before the first batch.
    variance : float
        Mean variance of the parameters in the last posterior that was drawn from.
    """

    model: nn.Module
    head: nn.Module | str | None
    loss: Loss
    optimizer: torch.optim.Optimizer
    settings: Settings
    scale: Scale
    samples: int
    warmup: int
    curvature: RunningCurvature
    generator: torch.Generator
    progress: Progress
    n_batches: int | None = None
    trained: TrainedHead | None = None
    variance: float = float("nan")

    def __call__(self, inputs: Inputs, labels: Int[Tensor, " B"]) -> float:
        """Descend E_q[L] and update H with E_q[h], both at the same sampled heads."""
        if self.trained is None:
            self.trained = TrainedHead.find(self.model, inputs, self.head, self.settings)
        if not self.progress.n_points and self.n_batches is not None:
            self.progress.n_points = self.n_batches * len(labels)  # until the first epoch is over
        offsets = self._offsets(len(labels))
        sampled = sampled_pass(self.model, self.trained.located, inputs, offsets)
        mined = [self._mine(f, labels) for f in sampled.embeddings]
        values = [
            self.loss(f, labels, *pairs) for f, pairs in zip(sampled.embeddings, mined, strict=True)
        ]
        for value in values:
            check_loss_type(value)
        value = torch.stack(values).mean()
        check_loss(value)
        curvature = self._expected_curvature(self.trained, sampled, labels, mined)
        number = descend(value, self.optimizer)  # only now the weights move
        if curvature is not None:
            self.curvature.update(curvature)
        return number

    def posterior(self, n_batch: int = 0) -> Posterior:
        """The one that a step on ``n_batch`` more points would draw from."""
        assert self.trained is not None
        mean = self.trained.jacobian().parameters
        return Posterior(mean, self.curvature.spectral(mean), *self.scales(n_batch))

    def scales(self, n_batch: int = 0) -> tuple[float, float]:
        """n and tau of the posterior.

        The points are those of an epoch: in the first one what the loader's length says, for a
        loader without a length the points so far.
        """
        n_points = max(self.progress.n_points, self.progress.epoch_points + n_batch)
        t = self.curvature.n_updates
        return self.scale.of_curvature(n_points, t), self.scale.of_prior(t)

    @property
    def warms_up(self) -> bool:
        """Whether nothing is drawn yet."""
        return self.progress.epoch < self.warmup

    @full_precision()
    def _offsets(self, n_batch: int) -> Float[Tensor, "S P"]:
        """eps of the present posterior; drawn on the CPU, so that devices agree."""
        posterior = self.posterior(n_batch)
        self.variance = float(posterior.spectrum.mean())  # trace / P: Q is orthogonal
        mean = posterior.mean
        if self.warms_up:
            return torch.zeros_like(mean)[None]
        shape = (self.samples, len(mean))
        noise = torch.randn(shape, generator=self.generator, dtype=mean.dtype).to(mean.device)
        return posterior.basis.from_eigenbasis(noise * posterior.spectrum.sqrt())

    def _mine(self, embeddings: Tensor, labels: Tensor) -> tuple[Any, ...]:
        """(index tuple,) of the miner, or () for every pair of the batch."""
        miner = self.settings.pairs
        if not callable(miner):
            return ()
        mined = miner(embeddings, labels)
        is_tuple = isinstance(mined, (tuple, list)) and len(mined) in (3, 4)
        if not is_tuple or not all(isinstance(index, Tensor) for index in mined):
            raise InputError(
                f"pairs gave {type(mined).__name__}: a miner returns 3 or 4 tensors of indices."
            )
        return (mined,)

    @full_precision()
    def _expected_curvature(
        self,
        trained: TrainedHead,
        sampled: SampledPass,
        labels: Tensor,
        mined: list[tuple[Any, ...]],
    ) -> Curvature | None:
        """E_q[h]; None for a batch of one class, which contrasts nothing."""
        if not mined[0] and len(labels.unique()) < 2:
            return None
        h, structure = at_least_float32(sampled.features.detach()), self.settings.structure
        total: Any = None
        for head, pairs in zip(trained.jacobians(sampled), mined, strict=True):
            chosen: dict[str, Any] = {"labels": labels}
            if pairs:
                chosen = {"indices_tuple": pairs[0]}
            value: Any = batch_curvature(h, head, trained.contrast, structure, **chosen)
            total = value if total is None else total + value
        return total if len(mined) == 1 else total.scaled(1 / len(mined))
