"""The running curvature of a training: an average over batches that forgets.

    H_t = (1 - a_t) H_(t-1) + a_t h_t,     a_t = (1 - d) / (1 - d^t)

is the mean of h_1 ... h_t with weights ``d^(t-k)`` (the bias correction of Kingma and Ba 2015,
Adam, section 3, as one recursion). It is an average over pairs after one step as after many, so
``n_effective`` means what it means after a post-hoc fit.

How much curvature and prior count after t steps: the average that stays, or the paper's sum.

    average   P_t = n H_t + tau I,              H_t = mean of h_1 ... h_t, weights d^(t-k)
    paper     P_t = d P_(t-1) + n h_t           (Warburg et al. 2023, LAM, eq 70, d = 1 - alpha)
                  = n S_t H_t + d^t tau I,      P_0 = tau I,  S_t = (1 - d^t) / (1 - d)

One average serves both: the paper's precision is that of ``S_t`` times as much data, with a prior
that fades. n is what an average over pairs stands for: all points, or all pairs of the data set.

A model at sampled weights of its head: one pass through the backbone, one head pass a sample.

The sampled weights are ``theta + eps_s`` with the module's own ``theta``, so the gradient of a loss
of these embeddings arrives at ``theta`` and at the backbone: it is the gradient of
``E_q[L(theta + eps)]`` estimated from the samples (Warburg et al. 2023, LAM, eq 69, where the sign
of the step is a misprint).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from laplace_metric.curvature._eigenbases import IdentityEigenbasis
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.curvature._structures import (
    Curvature,
    DiagCurvature,
    FullCurvature,
    KronCurvature,
    KroneckerFactors,
)
from laplace_metric.errors import HeadError, InputError
from laplace_metric.heads._capture import run_captured
from laplace_metric.heads._layout import Layout
from laplace_metric.heads._located import LocatedHead
from laplace_metric.models._calling import Inputs

LEAST = torch.finfo(torch.float32).tiny
"""A prior precision below is forgotten: 1 / tau would overflow."""


@dataclass
class RunningCurvature:
    """H over the batches so far, and the decomposition that draws are made from.

    Parameters
    ----------
    decay : float in [0, 1]
        d; an average over the last ``1 / (1 - d)`` steps. 0: the last batch, 1: every batch alike.
    refresh : int
        H is decomposed anew each so many updates (1 for a diagonal, where that costs nothing).
    value : Curvature or None
        H before the positivity step, of any sign; None before the first update.
    positivity : "clip" | "absolute"
        What becomes of negative curvature when H is decomposed.

    Examples
    --------
    >>> h = RunningCurvature(decay=0.5)
    >>> h.update(DiagCurvature(torch.tensor([3.0])))
    >>> h.update(DiagCurvature(torch.tensor([0.0])))  # weights 1/3 and 2/3
    >>> h.value.values
    tensor([1.])
    """

    decay: float
    refresh: int = 1
    n_updates: int = 0
    value: Curvature | None = None
    decomposed: Curvature | None = None
    _spectral: SpectralCurvature | None = None
    positivity: str = "clip"

    @property
    def weight(self) -> float:
        """a_t of the last update."""
        t = self.n_updates
        return 1 / t if self.decay == 1 else (1 - self.decay) / (1 - self.decay**t)

    def update(self, batch: Curvature) -> None:
        """Take in the curvature of one batch."""
        self.n_updates += 1
        if self.value is None:
            self.value = _summable(batch)
        else:
            old, new = self.value.scaled(1 - self.weight), batch.scaled(self.weight)
            self.value = old + new  # type: ignore[operator]
        if (self.n_updates - 1) % self.refresh == 0:
            self.decomposed, self._spectral = self.value, None

    def paper_scales(self, n: float, prior_precision: float) -> tuple[float, float]:
        """Return ``n S_t`` and ``d^t tau``: factors of H and of I in the paper's recursion.

        Raises
        ------
        InputError
            If nothing is left of the prior: a direction without curvature would have an infinite
            variance.

        Examples
        --------
        >>> RunningCurvature(decay=0.5, n_updates=3).paper_scales(10.0, 8.0)
        (17.5, 1.0)
        """
        t, d = self.n_updates, self.decay
        left = prior_precision * d**t
        if left < LEAST:
            raise InputError(
                f"recursion='paper' with decay={d} has forgotten its prior after {t} "
                "steps: pass a decay closer to 1, or recursion='average'."
            )
        first = max(t, 1)  # before the first step H is zero
        return n * (float(first) if d == 1 else (1 - d**first) / (1 - d)), left

    def spectral(self, like: Float[Tensor, " P"]) -> SpectralCurvature:
        """H after the positivity step as of the last refresh; zero before the first update.

        Its basis has the dtype and the device of ``like``.
        """
        if self.decomposed is None:
            zeros = torch.zeros(len(like), dtype=torch.float64, device=like.device)
            return SpectralCurvature(IdentityEigenbasis(), zeros, 0.0)
        if self._spectral is None:
            spectral = self.decomposed.decompose(self.positivity)
            self._spectral = replace(spectral, basis=spectral.basis.to(like))
        return self._spectral


def _summable(batch: Curvature) -> Curvature:
    """The curvature without what sums drop: a refined spectrum, a standard error."""
    if isinstance(batch, KronCurvature):
        return KronCurvature(batch.factors)
    return DiagCurvature(batch.values) if isinstance(batch, DiagCurvature) else batch


def curvature_tensors(value: Curvature) -> list[Tensor]:
    """The tensors of a running sum, in order."""
    if isinstance(value, DiagCurvature):
        return [value.values]
    if isinstance(value, FullCurvature):
        return [value.matrix]
    return [side for f in value.factors for side in (f.left, f.right)]


def curvature_of(tensors: Sequence[Tensor], structure: str, layouts: Sequence[Layout]) -> Curvature:
    """Back from ``curvature_tensors``."""
    if structure == "diag":
        return DiagCurvature(tensors[0])
    if structure == "full":
        return FullCurvature(tensors[0])
    sides = zip(tensors[::2], tensors[1::2], layouts, strict=True)
    return KronCurvature(tuple(KroneckerFactors(*part) for part in sides))


# A model at sampled weights of its head: one pass through the backbone, one head pass a sample.

Parameters = dict[str, Tensor]


class SampledPass(NamedTuple):
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
            "Online training moves the weights themselves, each of which is a parameter."
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
