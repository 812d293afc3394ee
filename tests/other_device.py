"""A device that stands for a GPU where there is none: tensors of both meet in no operation.

Its tensors, ``Away``, say that they are on the device "meta" and hold their numbers in main memory.
Within ``other_device()`` operations compute as they are, and refuse what CUDA refuses: tensors of
two devices, but for numbers without dimensions and indices in main memory, and NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
MOVES = ("aten::_to_copy", "aten::copy_")
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class Away(Tensor):
    """Tensor of the other device, with the numbers of ``here``."""

    is_meta = False
    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> Away:
        made = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device("meta"),
        )
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return _computed(function, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers, as a GPU does."""
        return self.here.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refuse it, as a GPU does."""
        raise TypeError("can't convert a tensor of another device to numpy: use Tensor.cpu()")

    __array__ = numpy


@contextmanager
def other_device() -> Iterator[None]:
    """Compute with tensors ``Away`` of a device that refuses those in main memory."""
    started, enabled = torch.autocast.__init__, torch.is_autocast_enabled

    def init(self: Any, device_type: str, *args: Any, **how: Any) -> None:
        started(self, "cpu" if device_type == "meta" else device_type, *args, **how)

    torch.autocast.__init__ = init
    torch.is_autocast_enabled = lambda kind="cpu": enabled("cpu" if kind == "meta" else kind)
    try:
        with _Operations(), _Calls():
            yield
    finally:
        torch.autocast.__init__, torch.is_autocast_enabled = started, enabled


def moved(model: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a model there."""
    for module in model.modules():
        for name, own in [*module.named_parameters(recurse=False)]:
            module._parameters[name] = nn.Parameter(Away(own.detach()))
        for name, own in [*module.named_buffers(recurse=False)]:
            module._buffers[name] = Away(own)
    return model


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return _computed(function, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Calls that make a tensor from a list, or index by one, on a device beneath the operations."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return function(*args, **kwargs).to(device)
        if not args or not isinstance(args[0], Away):
            return function(*args, **kwargs)
        if function in PRODUCTS and args[0].dim() == 1 and args[1].dim() == 2:
            return (args[0][None] @ args[1])[0]  # else PyTorch squeezes a result in place
        if function is Tensor.new_tensor:
            return Away(args[0].here.new_tensor(*args[1:], **kwargs))
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            at = tuple(torch.as_tensor(i) if isinstance(i, (list, np.ndarray)) else i for i in at)
            return function(args[0], at, *args[2:])
        return function(*args, **kwargs)


def _computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, tensors = function._schema.name, _tensors(args, kwargs)
    assert not any(t.is_meta for t in tensors), f"{name}: this stand-in misses how it was made"
    if name in INDEXES:  # CUDA takes indices in main memory; a tensor there takes no others
        at = [] if _is_away(args[0]) else _tensors(args[1])
        _check(name, [args[0], *at, *_tensors(args[2:3])])
    elif name not in MOVES:
        _check(name, tensors)
    device = kwargs.get("device")
    if device is not None:
        kwargs = {**kwargs, "device": "cpu"}
    made = function(*tree_map(_here, args), **tree_map(_here, kwargs))
    if name.endswith("_") and not name.endswith("__"):
        assert args[0].shape == _here(args[0]).shape, f"{name} changes a shape in place"
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    if name == "aten::_local_scalar_dense":
        return made
    away = any(map(_is_away, tensors)) if device is None else torch.device(device).type == "meta"
    return tree_map(lambda t: Away(t) if isinstance(t, Tensor) else t, made) if away else made


def _check(name: str, tensors: list[Tensor]) -> None:
    """Raise as CUDA does for tensors on two devices; one number may be in main memory."""
    sides = {_is_away(t) for t in tensors if t.dim() or _is_away(t)}
    if len(sides) > 1:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")


def _tensors(*tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_away(tensor: Any) -> bool:
    return isinstance(tensor, Away)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, Away) else value
