"""Heads whose weights are computed before each call, and the same with their weights written out.

``weight_norm``, ``spectral_norm``, ``orthogonal``, ``prune`` and parametrisations of one's own keep
other tensors than the layer uses: ``W = g v / |v|``, ``W = V / sigma(V)``, ``W = mask * V``. The
posterior is over W itself, the weights that the layer uses, as if the parametrisation had been
removed. So the head is copied with W in the place of what W is computed from, and Jacobians,
samples and distances are those of the copy. The model is left as it is: it runs with its own
layers, whose tensors are compared at each call like those of the rest of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from laplace_metric.errors import HeadError

FIRST = ("weight", "bias")
"""Order of the parameters in layers of torch, which a posterior's mean follows."""


def written_out(name: str, module: nn.Module) -> nn.Module | None:
    """Return a copy whose computed tensors are parameters; None if nothing is computed.

    The copy is in evaluation mode and has no hooks. The module is not changed, and none of its
    parametrisations runs in training mode, where ``spectral_norm`` moves its buffers.

    Raises
    ------
    HeadError
        If a layer has no parameter "weight", and what computes it is not known.

    Examples
    --------
    >>> from torch.nn.utils.parametrizations import weight_norm
    >>> layer = weight_norm(nn.Linear(3, 2))
    >>> copied = written_out("fc", layer)
    >>> [name for name, _ in copied.named_parameters()]
    ['weight', 'bias']
    >>> bool((copied.weight == layer.weight).all()), written_out("fc", nn.Linear(3, 2)) is None
    (True, True)
    """
    if not any(True for part in module.modules() for _ in _computed(part)):
        _check_known(name, module)
        return None
    with torch.no_grad():
        copied = _copy(module)
        for part in list(copied.modules()):
            _write_out(part)
            part._forward_hooks.clear()
            part._forward_pre_hooks.clear()
    _check_known(name, copied)
    return copied.requires_grad_(False)


def _computed(part: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that are computed; of hooks, the last one first."""
    for hook in reversed(list(part._forward_pre_hooks.values())):
        if isinstance(hook, BasePruningMethod):
            yield str(hook._tensor_name)
        elif isinstance(hook, (SpectralNorm, WeightNorm)):
            yield hook.name
    if parametrize.is_parametrized(part):
        yield from part.parametrizations.keys()  # type: ignore[operator, union-attr]


def _copy(module: nn.Module) -> nn.Module:
    """Copy in evaluation mode; what a hook computed with gradients is no leaf, and is detached."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        held = (value for value in vars(part).values() if isinstance(value, Tensor))
        memo |= {id(tensor): tensor.detach().clone() for tensor in held}
        # other threads add and remove hooks while this one copies
        memo |= {id(d): d.copy() for d in (part._forward_hooks, part._forward_pre_hooks)}
    return deepcopy(module, memo).eval()


def _write_out(part: nn.Module) -> None:
    """Replace what tensors are computed from by the tensors."""
    for hook in reversed(list(part._forward_pre_hooks.values())):
        if isinstance(hook, BasePruningMethod):
            _replace(part, str(hook._tensor_name), hook.apply_mask(part), ("_orig", "_mask"))
        elif isinstance(hook, SpectralNorm):
            value = hook.compute_weight(part, do_power_iteration=False)
            _replace(part, hook.name, value, ("_orig", "_u", "_v"))
        elif isinstance(hook, WeightNorm):
            _replace(part, hook.name, hook.compute_weight(part), ("_g", "_v"))
    if parametrize.is_parametrized(part):
        # ``remove_parametrizations`` would take the tensors from the class, which is the original's
        values = {name: getattr(part, name) for name in list(_computed(part))}
        part.__class__ = parametrize.type_before_parametrizations(part)
        del part.parametrizations
        for name, value in values.items():
            _replace(part, name, value)


def _replace(part: nn.Module, name: str, value: Tensor, parts: tuple[str, ...] = ()) -> None:
    """Register a computed tensor as a parameter, without the tensors ``name + parts``."""
    for gone in (name, *(name + end for end in parts)):
        for store in (vars(part), part._parameters, part._buffers):
            store.pop(gone, None)
    part.register_parameter(name, nn.Parameter(value.detach().clone()))
    rest = {n: p for n, p in part._parameters.items() if n not in FIRST}
    first = {n: part._parameters[n] for n in FIRST if n in part._parameters}
    part._parameters.clear()
    part._parameters.update(first | rest)


def _check_known(name: str, module: nn.Module) -> None:
    """Raise ``HeadError`` for a layer of torch whose weight is not its parameter."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    for where, part in module.named_modules():
        if isinstance(part, kinds) and "weight" not in part._parameters:
            hooks = [type(hook).__name__ for hook in part._forward_pre_hooks.values()]
            shown = f"{name}.{where}" if where else name
            raise HeadError(
                f"the weight of head {shown!r} is not a parameter: something computes it (forward "
                f"pre-hooks: {', '.join(hooks) or 'none'}), so there is nothing to put a posterior "
                "on. Write it out once (layer.weight = torch.nn.Parameter(layer.weight.detach()) "
                "after removing the hook; torch.nn.utils.parametrize.remove_parametrizations for "
                "parametrisations), or pass head='append' for a new linear layer after the model."
            )
