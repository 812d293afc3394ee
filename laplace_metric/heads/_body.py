"""The model apart from the weights of its head: what it held at the fit, and whether it still does.

A posterior describes embeddings of the whole model, so weights below the head belong to it, too.
Of each parameter and each persistent buffer (the entries of a ``state_dict``) outside the head the
fit records shape, type, the sha256 of the bytes, and ``VALUES`` of its values.

    same type       equal if the sha256 is
    another type    equal if the recorded values are, up to the rounding of the coarser type

so that ``.half()`` and another device are the same model, and other weights are not.
Modules without tensors, such as activations, are not recorded: the same weights in another
architecture are not noticed.

``num_batches_tracked`` is left out, which embeddings do not depend on, and so are buffers that the
model itself moves while it runs in evaluation mode, such as counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.io import digest

VALUES = 8
"""Values of a tensor, evenly spaced, that are recorded."""
ROUNDINGS = 4
"""Times machine epsilon: how far values may be off in another type."""
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class TensorRecord:
    """One tensor at the fit: its shape, its type, sha256 of its bytes, some of its values."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str
    values: tuple[float, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorRecord:
        """Record a tensor."""
        return cls(tuple(tensor.shape), str(tensor.dtype), _sha256(tensor), _values(tensor))

    def is_of(self, tensor: Tensor) -> bool:
        """Return whether a tensor is the recorded one, or the same in another type."""
        if tuple(tensor.shape) != self.shape or tensor.is_meta:
            return False
        if str(tensor.dtype) == self.dtype:
            return _sha256(tensor) == self.sha256
        before = getattr(torch, self.dtype.removeprefix("torch."), None)
        if before is None or not (before.is_floating_point and tensor.is_floating_point()):
            return False
        coarser = max(torch.finfo(before).eps, torch.finfo(tensor.dtype).eps)
        least = max(torch.finfo(before).smallest_normal, torch.finfo(tensor.dtype).smallest_normal)
        return all(
            abs(a - b) <= ROUNDINGS * coarser * max(abs(a), least)
            for a, b in zip(self.values, _values(tensor), strict=True)
        )


@dataclass(frozen=True)
class BodyRecord:
    """Record of a model at the fit, apart from the weights of its head.

    Parameters
    ----------
    tensors : dict of name to TensorRecord
        Records of the tensors outside the head, by their names in ``state_dict``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    >>> record = BodyRecord.of(model, model[1])
    >>> list(record.tensors), record.changes(model.half())
    (['0.weight', '0.bias'], [])
    >>> _ = nn.init.normal_(model[0].weight)
    >>> record.changes(model)
    ["parameter '0.weight' has other values"]
    """

    tensors: dict[str, TensorRecord]

    @classmethod
    def of(cls, model: nn.Module, head: nn.Module, moving: Collection[str] = ()) -> BodyRecord:
        """Record a model but for the tensors of its head and the ``moving`` buffers."""
        known: dict[int, TensorRecord] = {}  # tied weights have several names
        tensors = {}
        for name, tensor in body_tensors(model, head):
            if name in moving or not _is_readable(tensor):
                continue
            if id(tensor) not in known:
                known[id(tensor)] = TensorRecord.of(tensor)
            tensors[name] = known[id(tensor)]
        return cls(tensors)

    def changes(self, model: nn.Module, names: Collection[str] | None = None) -> list[str]:
        """Describe each recorded tensor (of these ``names``) that the model no longer has."""
        named = dict(_state(model))
        found: list[str] = []
        for name, record in self.tensors.items():
            if names is not None and name not in names:
                continue
            tensor = named.get(name)
            kind = "parameter" if tensor is None or isinstance(tensor, nn.Parameter) else "buffer"
            if tensor is None:
                renamed = (t for other, t in named.items() if _is_wrapped(name, other))
                if not any(_is_readable(t) and record.is_of(t) for t in renamed):
                    found.append(f"the model has no {name!r}")
            elif tuple(tensor.shape) != record.shape:
                now, before = list(tensor.shape), list(record.shape)
                found.append(f"{kind} {name!r} is {now} and was {before}")
            elif not record.is_of(tensor):
                found.append(f"{kind} {name!r} has other values")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            name: [list(t.shape), t.dtype, t.sha256, list(t.values)]
            for name, t in self.tensors.items()
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> BodyRecord:
        """Read what ``to_json`` gave; ``TypeError`` or ``ValueError`` for anything else."""
        return cls(
            {
                name: TensorRecord(tuple(shape), str(dtype), str(sha256), tuple(map(float, values)))
                for name, (shape, dtype, sha256, values) in content.items()
            }
        )


def listed(changes: list[str], most: int = 3) -> str:
    """Join what differs, for an error.

    Examples
    --------
    >>> listed(["a", "b", "c", "d", "e"])
    'a; b; c; and 2 more'
    """
    more = f"; and {len(changes) - most} more" if len(changes) > most else ""
    return "; ".join(changes[:most]) + more


def body_tensors(model: nn.Module, head: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of a model's ``state_dict`` that are not tensors of the head."""
    in_head = {id(tensor) for tensor in (*head.parameters(), *head.buffers())}
    return ((name, tensor) for name, tensor in _state(model) if id(tensor) not in in_head)


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a ``state_dict`` holds, under each of its names, but for counters."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        persistent = {
            name: buffer
            for name, buffer in module._buffers.items()
            if name not in module._non_persistent_buffers_set and name != COUNTER
        }
        for name, tensor in (*module._parameters.items(), *persistent.items()):
            if tensor is not None:
                yield dot + name, tensor


def _is_wrapped(name: str, other: str) -> bool:
    """Return whether one name is the other inside a module around the model.

    Examples
    --------
    >>> _is_wrapped("0.weight", "model.0.weight"), _is_wrapped("0.weight", "0.weight_orig")
    (True, False)
    """
    return name.endswith(f".{other}") or other.endswith(f".{name}")


def _is_readable(tensor: Tensor) -> bool:
    """Return whether its values are in plain memory: not of subclasses, which may hold anything."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta


def _sha256(tensor: Tensor) -> str:
    return digest("", [_plain(tensor)])[:16]


def _plain(tensor: Tensor) -> Tensor:
    """Return values in plain memory; of quantised tensors their whole numbers."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.to_dense()


def _values(tensor: Tensor) -> tuple[float, ...]:
    flat = _plain(tensor).flatten()
    step = max(1, len(flat) // VALUES)
    return tuple(flat[::step][:VALUES].double().nan_to_num().tolist())
