"""A model at sampled weights of its head: one pass through the backbone, one head pass a sample.

The sampled weights are ``theta + eps_s`` with the module's own ``theta``, so the gradient of a loss
of these embeddings arrives at ``theta`` and at the backbone: it is the gradient of
``E_q[L(theta + eps)]`` estimated from the samples (Warburg et al. 2023, LAM, eq 69, where the sign
of the step is a misprint).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from laplace_metric.errors import HeadError
from laplace_metric.heads._capture import run_captured
from laplace_metric.heads._located import LocatedHead
from laplace_metric.inputs._batches import ModelInput

Parameters = dict[str, Tensor]


class SampledPass(NamedTuple):
    """h [B, D] with gradient, and for each sample the head's parameters and f [B, Z]."""

    features: Float[Tensor, "B D"]
    parameters: list[Parameters]
    embeddings: list[Float[Tensor, "B Z"]]


def sampled_pass(
    model: nn.Module, head: LocatedHead, inputs: ModelInput, offsets: Float[Tensor, "S P"]
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
    """Return theta + eps by name, eps [P] in ``parameters_to_vector`` order."""
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
    """Return f [B, Z] at other parameters; statistics of the head's buffers are left alone."""
    buffers = {name: b.clone() for name, b in head.module.named_buffers()}
    h = features if isinstance(head.module, nn.Linear) else features.clone()
    z = functional_call(head.module, (parameters, buffers), (h,))
    return nn.functional.normalize(z, dim=-1) if head.normalized else z


@torch.no_grad()
def with_parameters(module: nn.Module, parameters: Parameters) -> nn.Module:
    """Return a copy of the module that holds these parameters."""
    copied = copy.deepcopy(module)
    for name, parameter in copied.named_parameters():
        parameter.copy_(parameters[name])
    return copied
