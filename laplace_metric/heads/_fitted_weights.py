"""Notices that a model no longer has the weights that a posterior was fitted to.

At each call all tensors are compared by identity and version counter. Fused optimisers and writes
through ``tensor.data`` move no counter, so addresses and a sample of the values are compared, too:
of all tensors of the head, and of ``AT_ONCE`` others, the next ones at the next call. Where
something differs, all values of these tensors are compared; values that are the same pass.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import WeightsChangedError
from laplace_metric.heads._body import BodyRecord, body_tensors, listed
from laplace_metric.heads._located import LocatedHead

SAMPLE = 2**14
"""Weights of a head, evenly spaced, whose values are compared at each call."""
BODY_SAMPLE = 64
"""Values of another tensor, evenly spaced."""
AT_ONCE = 16
"""Tensors outside the head that are sampled at a call."""

VERSION = attrgetter("_version")

Stamp = tuple[int, int, int | None]
"""Identity, address and version counter of a tensor."""
Kind = tuple[torch.dtype, torch.device]


class Places:
    """Every module and every tensor of a model, as they are now.

    They are compared at each call, so all of it is done by loops of Python's own in C.
    """

    def __init__(self, *models: nn.Module) -> None:
        modules = [module for model in models for module in model.modules()]
        hidden = [m for m in modules if isinstance(m, torch.jit.ScriptModule)]
        modules = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        children: list[dict[str, Any]] = [m._modules for m in modules if m._modules]
        tensors = [store for m in modules for store in (m._parameters, m._buffers) if store]
        self.stores = children + tensors
        # held, so that nothing else gets their identity
        self.held = list(chain.from_iterable(map(dict.values, self.stores)))
        self.ids = list(map(id, self.held))
        # scripted modules have no dictionaries of Python: their tensors cannot be replaced there
        of_scripted = (t for m in hidden for t in chain(m.parameters(), m.buffers()))
        found = (t for t in chain(self.held, of_scripted) if isinstance(t, Tensor))
        self.counted = [t for t in found if not t.is_inference()]  # those have no counter
        self.versions = list(map(VERSION, self.counted))

    def are_same(self) -> bool:
        """Return whether no tensor was replaced, or written to so that its counter moved."""
        ids = map(id, chain.from_iterable(map(dict.values, self.stores)))
        return list(ids) == self.ids and list(map(VERSION, self.counted)) == self.versions


class Sample(NamedTuple):
    """Some tensors of one type and device, where they are, and some of their values.

    ``views`` are of the same memory as the tensors, and ``values`` what they held.
    """

    tensors: list[Tensor]
    addresses: list[int]
    views: list[Tensor]
    values: Tensor

    @classmethod
    def of(cls, pairs: list[tuple[Tensor, Tensor]]) -> Sample:
        """Take the present values of tensors and their views."""
        tensors, views = map(list, zip(*pairs, strict=True))
        return cls(tensors, list(map(_address, tensors)), views, torch.cat(views))

    def is_same(self) -> bool:
        """Return whether the tensors are where they were, with these values."""
        if list(map(_address, self.tensors)) != self.addresses:
            return False
        return torch.equal(torch.cat(self.views), self.values)


class FittedWeights:
    """Compares a model with what it was at the fit: see the top of this file.

    Parameters
    ----------
    model : nn.Module
        Model that holds the head.
    head : LocatedHead
        Head of this model, which has the posterior.
    mean : Tensor [P]
        Mean of the posterior: the weights of the head at the fit.
    body : BodyRecord or None
        Record of the model outside its head at the fit. None: it is not compared.
    verified : bool
        True if the model is known to be that of the fit, as right after it. Default: False.
    """

    def __init__(
        self,
        model: nn.Module,
        head: LocatedHead,
        mean: Float[Tensor, " P"],
        body: BodyRecord | None,
        *,
        verified: bool = False,
    ) -> None:
        self.model, self.head, self.mean, self.body = model, head, mean, body
        self._buffers = [buffer.detach().clone() for buffer in head.module.buffers()]
        self._places: Places | None = None
        self._of_body: dict[str, Stamp] = {}
        self._samples: list[list[Sample]] = []
        self._turn = 0
        if verified:
            self._note()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the state of this model's own tensors: a copy compares its own, all values."""
        return {**vars(self), "_places": None, "_of_body": {}, "_samples": []}

    def check(self, *, values: bool = False) -> None:
        """Compare what is cheap to compare, or all values.

        Raises
        ------
        WeightsChangedError
            For other weights, and for a head of another type or on another device.
        """
        in_place = self._places is not None and self._places.are_same()
        if in_place and not values and self._sample_is_same():
            return
        self._check_head()
        if self.body is not None:
            # unless counters alone differ, and tell of which tensors, it may be any: batch
            # normalisation in training moves its statistics, and only the counter of its batches
            alone = not in_place and not values and all(s.is_same() for s in chain(*self._samples))
            known = self._of_body if alone else {}
            present = {n: stamp_of(t) for n, t in body_tensors(self.model, self.head.module)}
            names = [n for n in self.body.tensors if n not in known or known[n] != present.get(n)]
            if changes := self.body.changes(self.model, names):
                whose = f"the weights of the model before head {self.head.name!r}"
                raise self._error(whose, changes)
        self._note()

    def _sample_is_same(self) -> bool:
        samples, self._turn = self._samples, self._turn + 1
        return all(sample.is_same() for sample in samples[self._turn % len(samples)])

    def _note(self) -> None:
        """Keep what the model is now, which is what it was at the fit."""
        tensors: list[Tensor] = []
        if self.body is not None:
            named = dict(body_tensors(self.model, self.head.module))
            self._of_body = {name: stamp_of(tensor) for name, tensor in named.items()}
            tensors = [tensor for name, tensor in named.items() if name in self.body.tensors]
        step = 1 + (len(self.mean) - 1) // SAMPLE
        of_head: list[tuple[Tensor, Tensor]] = [
            (p, p.detach().flatten()[::step]) for p in self.head.module.parameters()
        ]
        self._samples = _samples(of_head, tensors)
        self._places = Places(self.model, self.head.module)

    def _check_head(self) -> None:
        """Compare all values of the head with the mean of the posterior."""
        name = f"the weights of head {self.head.name!r}"
        own = self.head.module if self.head.source is None else self.head.source
        devices = {str(p.device) for p in own.parameters()}
        if devices != {str(self.mean.device)}:
            moved = f"they were moved from {self.mean.device} to {', '.join(devices)}"
            raise self._error(name, [moved])
        kinds = {str(p.dtype) for p in own.parameters()}
        if own is not self.head.module and kinds != {
            str(p.dtype) for p in self.head.module.parameters()
        }:
            raise self._error(name, [f"what they are computed from is {', '.join(kinds)} now"])
        parts = [at_least_float32(p.detach()).flatten() for p in self.head.module.parameters()]
        theta = torch.cat(parts)
        if theta.dtype != self.mean.dtype:
            raise self._error(name, [f"they were {self.mean.dtype} and are {theta.dtype}"])
        if theta.shape != self.mean.shape:
            raise self._error(name, [f"they were {len(self.mean)} numbers and are {len(theta)}"])
        if not torch.equal(theta, self.mean):
            gaps = (theta - self.mean).abs()
            n_changed, largest = int((gaps != 0).sum()), float(gaps.max())
            differ = f"{n_changed} of {len(theta)} differ, by up to {largest:.2g}"
            raise self._error(name, [differ])
        buffers = list(self.head.module.buffers())
        if len(buffers) != len(self._buffers) or not all(map(torch.equal, buffers, self._buffers)):
            raise self._error(name, ["its buffers (running statistics) differ"])

    def _error(self, whose: str, changes: list[str]) -> WeightsChangedError:
        return WeightsChangedError(
            f"{whose} changed after the fit: {listed(changes)}. The posterior belongs to the old "
            "ones: fit again, or put those back (type and device, too)."
        )


def stamp_of(tensor: Tensor) -> Stamp:
    """Return identity, address and version counter, which tensors of inference mode lack."""
    return id(tensor), _address(tensor), None if tensor.is_inference() else tensor._version


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return 0


def stamped_buffers(model: nn.Module) -> dict[str, Stamp]:
    """Return stamps of all buffers by name: the model moves those that differ after a call."""
    return {name: stamp_of(buffer) for name, buffer in model.named_buffers()}


def _samples(of_head: list[tuple[Tensor, Tensor]], tensors: list[Tensor]) -> list[list[Sample]]:
    """Return what one call after the other compares: the head, and some of the other tensors."""
    kinds: dict[Kind, list[tuple[Tensor, Tensor]]] = {}
    for tensor in tensors:
        if (view := _view(tensor)) is not None:
            kinds.setdefault((view.dtype, view.device), []).append((tensor, view))
    head_kinds = {(view.dtype, view.device) for _, view in of_head}
    turns = []
    for kind, pairs in kinds.items():
        for start in range(0, len(pairs), AT_ONCE):
            some = pairs[start : start + AT_ONCE]
            parts = [of_head + some] if head_kinds == {kind} else [of_head, some]
            turns.append([Sample.of(part) for part in parts])
    return turns or [[Sample.of(of_head)]]


def _view(tensor: Tensor) -> Tensor | None:
    """Return some values of a tensor, in its own memory; None of one that is not in one piece."""
    if not tensor.numel() or type(tensor) not in (Tensor, nn.Parameter):
        return None
    dense = tensor.detach()
    if dense.layout != torch.strided or dense.is_meta:
        return None
    strides = dense.stride()
    order = sorted(range(dense.ndim), key=lambda i: -strides[i])  # of channels_last, say
    dense = dense.permute(order)
    if not dense.is_contiguous():
        return None
    return dense.view(-1)[:: 1 + (dense.numel() - 1) // BODY_SAMPLE]
