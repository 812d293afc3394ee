"""A model at sampled weights of its head: one pass through the backbone, one head pass a sample.

The sampled weights are ``theta + eps_s`` with the module's own ``theta``, so the gradient of a loss
of these embeddings arrives at ``theta`` and at the backbone: it is the gradient of
``E_q[L(theta + eps)]`` estimated from the samples (Warburg et al. 2023, LAM, eq 69, where the sign
of the step is a misprint).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._ggn import batch_curvature
from laplace_metric.curvature._structures import Curvature
from laplace_metric.errors import HeadError, InputError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import APPEND, LocatedHead, find_head, run_captured
from laplace_metric.laplace import Posterior, Settings
from laplace_metric.models._calling import Inputs
from laplace_metric.online._state import RunningCurvature, Scale
from laplace_metric.training._loop import Loss, Progress, check_loss, check_loss_type, descend

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class SampledPass:
    """h [B, D] with gradient, and for each sample the head's parameters and f [B, Z]."""

    features: Float[Tensor, "B D"]
    parameters: list[Parameters]
    embeddings: list[Float[Tensor, "B Z"]]


def sampled_pass(
    model: nn.Module, head: LocatedHead, inputs: Inputs, offsets: Float[Tensor, "S P"]
) -> SampledPass:
    """Run the model once, and its head once for each row of ``offsets`` [S, P] added to theta.

    The first sample is the pass through the whole model, so that with one sample nothing (a
    dropout mask, a batch-norm statistic) happens more often than in plain training.

    Examples
    --------
    >>> from laplace_metric.heads._locate import find_head
    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    >>> sampled = sampled_pass(model, find_head(model, x), x, torch.zeros(5, 18))
    >>> len(sampled.embeddings), sampled.embeddings[0].shape
    (5, torch.Size([3, 2]))
    """
    parameters = [_shifted(head.module, offset) for offset in offsets]
    first = run_captured(_Replaced(model, head.module, parameters[0]), head, inputs)
    later = [_head_pass(head, theta, first.features) for theta in parameters[1:]]
    return SampledPass(first.features, parameters, [first.output, *later])


def _shifted(module: nn.Module, offset: Tensor) -> Parameters:
    """theta + eps by name, eps [P] in ``parameters_to_vector`` order."""
    named = dict(module.named_parameters())
    sizes = [p.numel() for p in named.values()]
    if sum(sizes) != len(offset):
        raise HeadError(
            f"the head has {sum(sizes)} parameters for {len(offset)} weights: {list(named)}. "
            "Online training moves the weights themselves: remove what computes them, such as "
            "weight_norm (torch.nn.utils.parametrize.remove_parametrizations)."
        )
    parts = offset.split(sizes)
    pairs = zip(named.items(), parts, strict=True)
    return {name: p + part.view_as(p).to(p.dtype) for (name, p), part in pairs}


class _Replaced(nn.Module):
    """The model with other parameters in its head, for one pass."""

    def __init__(self, model: nn.Module, head: nn.Module, parameters: Parameters) -> None:
        super().__init__()
        # replicas on other devices would have the old parameters: one device
        self.model = model = model.module if isinstance(model, nn.DataParallel) else model
        names = {id(module): name for name, module in model.named_modules()}
        self._replaced = {
            _dotted(names[id(part)], leaf): parameters[_dotted(name, leaf)]
            for name, part in head.named_modules()
            if id(part) in names  # a slice, such as model[-3:], is not a module of the model
            for leaf, _ in part.named_parameters(recurse=False)
            if _dotted(name, leaf) in parameters
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.model, self._replaced, args, kwargs, tie_weights=False)


def _dotted(module: str, leaf: str) -> str:
    return f"{module}.{leaf}" if module else leaf


def _head_pass(head: LocatedHead, parameters: Parameters, features: Tensor) -> Tensor:
    """f [B, Z] at other parameters; statistics of the head's buffers are left alone."""
    buffers = {name: b.clone() for name, b in head.module.named_buffers()}
    h = features if isinstance(head.module, nn.Linear) else features.clone()
    z = functional_call(head.module, (parameters, buffers), (h,))
    return nn.functional.normalize(z, dim=-1) if head.normalized else z


@torch.no_grad()
def with_parameters(module: nn.Module, parameters: Parameters) -> nn.Module:
    """A copy of the module that holds these parameters."""
    copied = copy.deepcopy(module)
    for name, parameter in copied.named_parameters():
        parameter.copy_(parameters[name])
    return copied


# One step of online Laplace: sample heads, descend the expected loss, update the curvature.


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
        """True if nothing is drawn yet."""
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
            value: Any = batch_curvature(
                h,
                head,
                trained.contrast,
                structure,
                labels=None if pairs else labels,
                indices_tuple=pairs[0] if pairs else None,
            )
            total = value if total is None else total + value
        return total if len(mined) == 1 else total.scaled(1 / len(mined))
