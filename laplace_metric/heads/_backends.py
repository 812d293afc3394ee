"""Which backend differentiates a head.

The Jacobian of any head by ``torch.func``: the general path, and the slow one.

The Jacobian of a head by BackPACK's first-order extensions (the extra ``backpack``).

A diagonal of ``J^T B J`` takes one backward pass for each eigenvector of the blocks: with
``B_i = sum_r b_ir q_ir q_ir^T``

    diag(sum_i J_i^T B_i J_i) = sum_r sum_i b_ir (J_i^T q_ir)^2

and BackPACK's ``SumGradSquared`` gives ``sum_i (J_i^T v_i)^2`` for cotangents ``v = sqrt(|b|) q``.
B may have either sign: positive and negative eigenvalues are summed apart, so no square root ever
sees a negative number and nothing has to be projected.

The Jacobian of heads built from nnj's modules, by nnj's own products.

nnj (https://github.com/IlMioFrizzantinoAmabile/nnj) is not on the package index. Its ``Sequential``
keeps feature maps that forward hooks collect: they go stale with the next input, are missing with
``add_hooks=False``, and in a deep copy belong to the original. So the modules are run here one by
one without hooks, and every product is given the feature maps of its own input; nothing is left on
the user's head.
"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vjp, vmap

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import HeadError, MissingPackageError, UnknownNameError
from laplace_metric.heads._jacobian import (
    JACOBIAN_BYTES,
    ChainJacobian,
    HeadJacobian,
    Layout,
    LinearJacobian,
)
from laplace_metric.heads._locate import PointwiseHead

BACKENDS = ("auto", "analytic", "torch.func", "backpack", "nnj")


def jacobian_of(module: nn.Module, n_outputs: int, backend: str = "auto") -> HeadJacobian:
    """The Jacobian of a head with Z outputs.

    Parameters
    ----------
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        "auto": analytic where it exists (linear layers with elementwise activations between
        them), nnj for nnj's own modules, else torch.func.

    Raises
    ------
    UnknownNameError
        For another name.
    HeadError
        If the backend cannot differentiate this head; the message names those that can.

    Examples
    --------
    >>> type(jacobian_of(nn.Linear(3, 2), 2)).__name__
    'LinearJacobian'
    """
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend in ("auto", "analytic"):
        if is_linear(module):
            return LinearJacobian.of(module)
        if ChainJacobian.fits(module):
            return ChainJacobian.of(module)
        if backend == "analytic":
            raise HeadError(
                "backend='analytic' knows nn.Linear, and nn.Sequential of linear layers with "
                f"elementwise activations between them; this head is a {type(module).__name__}. "
                "Use backend='torch.func' (any head) or 'backpack'."
            )
        backend = "nnj" if NnjJacobian.fits(module) else "torch.func"
    if backend == "backpack":
        from laplace_metric.heads._backends import BackpackJacobian

        return BackpackJacobian.of(module, n_outputs)
    kind = NnjJacobian if backend == "nnj" else FunctionalJacobian
    return kind.of(module, n_outputs)


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear | PointwiseHead]:
    """``nn.Linear``, or nnj's, which computes the same; other subclasses may compute anything.

    So is a 1x1 convolution on mean features.
    """
    if isinstance(module, PointwiseHead):
        return True
    known = type(module).__module__.split(".")[0] in ("torch", "nnj")
    return isinstance(module, nn.Linear) and known


# The Jacobian of any head by ``torch.func``: the general path, and the slow one.

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class FunctionalJacobian(HeadJacobian):
    """A module [B, D] -> [B, Z] that treats its inputs one by one in eval mode.

    Examples
    --------
    >>> head = FunctionalJacobian(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 3)
    >>> head.jacobian(torch.ones(5, 4)).shape
    torch.Size([5, 3, 21])
    """

    module: nn.Module
    n_outputs: int

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (Layout(1, len(self.parameters), bias=False),)

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        parts = [at_least_float32(p.detach()).flatten() for p in self.module.parameters()]
        return torch.cat(parts)

    @property
    def signature(self) -> str:
        return f"{type(self).__name__} {self.module}"

    @property
    def constants(self) -> list[Tensor]:
        return list(self.module.buffers())

    def _named(self) -> Parameters:
        return {n: at_least_float32(p.detach()) for n, p in self.module.named_parameters()}

    def _unflatten(self, vector: Tensor) -> Parameters:
        """[P] -> named parameters."""
        named = self._named()
        parts = vector.split([p.numel() for p in named.values()])
        pairs = zip(named.items(), parts, strict=True)
        return {name: part.view_as(p) for (name, p), part in pairs}

    def _private(self) -> nn.Module:
        """The module in eval mode, copied without its tensors.

        ``functional_call`` puts other parameters into a module for a while: into the user's own,
        other threads would run with them.
        """
        parts = list(self.module.modules())
        held = [x for part in parts for x in vars(part).values() if isinstance(x, Tensor)]
        shared = [*self.module.parameters(), *self.module.buffers(), *held]
        memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
        for part in parts:  # other threads add and remove hooks while this one copies
            memo |= {id(d): d.copy() for d in (part._forward_hooks, part._forward_pre_hooks)}
        private = copy.deepcopy(self.module, memo)
        return private.eval()

    def _call(self, module: nn.Module, parameters: Parameters, features: Tensor) -> Tensor:
        buffers = {
            name: at_least_float32(b) if b.is_floating_point() else b
            for name, b in module.named_buffers()
        }
        return functional_call(module, (parameters, buffers), (features,))

    def to(self, dtype: torch.dtype) -> FunctionalJacobian:
        if dtype == self.dtype:
            return self
        return type(self).of(copy.deepcopy(self.module).to(dtype), self.n_outputs)

    @classmethod
    def of(cls, module: nn.Module, n_outputs: int) -> FunctionalJacobian:
        """Build from a head with Z outputs; tensors are shared."""
        return cls(module, n_outputs)

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        return self._call(self._private(), self._named(), features)

    @torch.no_grad()
    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        module = self._private()

        def one(parameters: Parameters, h: Tensor) -> Tensor:
            return self._call(module, parameters, h[None])[0]

        parts = vmap(jacrev(one), in_dims=(None, 0))(self._named(), features)
        return torch.cat([part.flatten(2) for part in parts.values()], dim=-1)

    @torch.no_grad()
    def vjp(
        self, features: Float[Tensor, "B D"], cotangents: Float[Tensor, "B R Z"]
    ) -> Float[Tensor, "R P"]:
        """One backward pass a row of V, all points at once: no [B, Z, P] array."""
        module = self._private()
        pullback = vjp(lambda theta: self._call(module, theta, features), self._named())[1]
        rows = [pullback(v)[0].values() for v in cotangents.unbind(1)]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).double()

    @torch.no_grad()
    def forward_with(
        self, features: Float[Tensor, "B D"], parameters: Float[Tensor, "n P"]
    ) -> Float[Tensor, "n B Z"]:
        module, rows = self._private(), [self._unflatten(p) for p in parameters]
        return torch.stack([self._call(module, row, features) for row in rows])


# The Jacobian of a head by BackPACK's first-order extensions (the extra ``backpack``).

_BACKPACK = threading.RLock()
"""BackPACK keeps what it is asked for in one place of the process, and answers on parameters."""
INSTALL_BACKPACK = "pip install --no-deps backpack-for-pytorch einops unfoldNd"
"""Without torchvision, which BackPACK asks for, does not need, and which pins one torch."""


@dataclass(frozen=True)
class BackpackJacobian(FunctionalJacobian):
    """A private, extended copy of the head; everything but first derivatives by ``torch.func``.

    Parameters
    ----------
    extended : nn.Module
        The copy that BackPACK's hooks live on; the user's head is never touched.
    """

    extended: nn.Module

    @classmethod
    def of(cls, module: nn.Module, n_outputs: int) -> BackpackJacobian:
        """Copy and extend a head.

        Raises
        ------
        MissingPackageError
            If BackPACK is not installed.
        HeadError
            If BackPACK does not know a module of the head.
        """
        try:
            from backpack import extend
        except ImportError as error:
            raise MissingPackageError("backpack", "backend='backpack'", INSTALL_BACKPACK) from error
        try:
            extended = extend(_private_copy(module))
        except NotImplementedError as error:
            raise HeadError(
                f"BackPACK does not know a module of this head ({error}): use backend='torch.func'."
            ) from error
        return cls(module, n_outputs, extended)

    def _forward_to_extend(self, features: Tensor) -> Tensor:
        for parameter in self.extended.parameters():
            parameter.requires_grad_()
        return self.extended(features)

    def _read(self, name: str) -> Tensor:
        """Read what the extension left on the parameters [..., P], and clear it."""
        parts = []
        for parameter in self.extended.parameters():
            value = getattr(parameter, name)
            n_leading = value.ndim - parameter.ndim
            parts.append(value.detach().flatten(n_leading))
            delattr(parameter, name)
            parameter.grad = None
        return torch.cat(parts, dim=-1)

    def _backward(self, output: Tensor, cotangents: Tensor, kind: str) -> Tensor:
        from backpack import backpack, extensions

        extension = getattr(extensions, kind)()
        with backpack(extension, retain_graph=True):
            (output * cotangents).sum().backward(retain_graph=True)
        return self._read(extension.savefield)

    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        with _BACKPACK, torch.enable_grad():
            output = self._forward_to_extend(features)
            rows = torch.eye(self.n_outputs, dtype=output.dtype, device=output.device)
            parts = [self._backward(output, row.expand_as(output), "BatchGrad") for row in rows]
        return torch.stack(parts, dim=1)

    def diagonal(
        self, features: Float[Tensor, "B D"], blocks: Float[Tensor, "B Z Z"]
    ) -> Float[Tensor, " P"]:
        values, vectors = torch.linalg.eigh(blocks)  # [B, Z], [B, Z, Z]
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        with _BACKPACK, torch.enable_grad():
            output = self._forward_to_extend(features)
            for r in range(self.n_outputs):
                for sign in (1, -1):
                    root = (sign * values[:, r]).clamp_min(0).sqrt()
                    if bool(root.any()):
                        v = root[:, None] * vectors[:, :, r]  # [B, Z]
                        total += sign * self._backward(output, v, "SumGradSquared").double()
        return total


def _private_copy(module: nn.Module) -> nn.Module:
    """In eval mode, float32 at least, and without in-place steps, which BackPACK forbids."""
    private = copy.deepcopy(module).eval()
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in private.parameters()):
        private = private.float()
    for part in private.modules():
        if getattr(part, "inplace", False):
            setattr(part, "inplace", False)  # noqa: B010
    return private


# The Jacobian of heads built from nnj's modules, by nnj's own products.

INSTALL_NNJ = "pip install --no-deps git+https://github.com/IlMioFrizzantinoAmabile/nnj"


class HooklessChain(nn.Module):
    """nnj modules one after the other; their parameters are shared, their hooks do not run."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def feature_maps(self, features: Tensor) -> list[Tensor]:
        """h and the output of every module."""
        maps = [features]
        for part in self.parts:
            maps.append(part.forward(maps[-1]))
        return maps

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Raw embeddings z of the features h."""
        return self.feature_maps(features)[-1]


@dataclass(frozen=True)
class NnjJacobian(FunctionalJacobian):
    """First derivatives by nnj; draws and vector-Jacobian products by ``torch.func``.

    Examples
    --------
    >>> import nnj  # doctest: +SKIP
    >>> head = nnj.Sequential(nnj.Linear(4, 8), nnj.Tanh(), nnj.Linear(8, 2))  # doctest: +SKIP
    >>> NnjJacobian.of(head, 2).jacobian(torch.ones(5, 4)).shape  # doctest: +SKIP
    torch.Size([5, 2, 58])
    """

    module: HooklessChain

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether ``of`` takes this head; without importing nnj."""
        nnj = sys.modules.get("nnj")
        return nnj is not None and not _unknown(module, nnj)

    @classmethod
    def of(cls, module: nn.Module, n_outputs: int) -> NnjJacobian:
        """Read a head; tensors are shared (half precision becomes a float32 copy).

        Raises
        ------
        MissingPackageError
            If nnj cannot be imported.
        HeadError
            If the head is not made of nnj's linear layers and elementwise activations.
        """
        if unknown := _unknown(module, _import()):
            raise HeadError(
                f"backend='nnj' knows nnj.Linear, nnj's elementwise activations and nnj.Sequential "
                f"of them, each used once; this head has {unknown}. Build it with "
                "nnj.Sequential(nnj.Linear(...), ...), or use backend='auto'."
            )
        parts = list(_parts(module))
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()):
            parts = [copy.deepcopy(part).float() for part in parts]
        return cls(HooklessChain(parts), n_outputs)

    def _chain(self, features: Tensor) -> tuple[Any, Tensor]:
        """nnj's chain with the feature maps of these inputs, and its output."""
        maps = self.module.feature_maps(features)
        chain = _import().Sequential(*self.module.parts, add_hooks=False)
        chain.feature_maps = maps
        return chain, maps[-1]

    @torch.no_grad()
    def jacobian(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z P"]:
        chain, output = self._chain(features)
        return chain.jacobian(features, output, wrt="weight")

    @torch.no_grad()
    def diagonal(
        self, features: Float[Tensor, "B D"], blocks: Float[Tensor, "B Z Z"]
    ) -> Float[Tensor, " P"]:
        """nnj gives one diagonal a point [b, P]: blocks of points keep that small."""
        step = max(1, JACOBIAN_BYTES // (8 * self.n_parameters))
        total = torch.zeros(self.n_parameters, dtype=torch.float64, device=features.device)
        for h, b in zip(features.split(step), blocks.split(step), strict=True):
            chain, output = self._chain(h)
            diagonals = chain.jTmjp(
                h, output, b, wrt="weight", from_diag=False, to_diag=True, diag_backprop=False
            )
            total += diagonals.sum(0).double()
        return total


def _import() -> Any:
    try:
        return importlib.import_module("nnj")
    except ImportError as error:
        raise MissingPackageError("nnj", "backend='nnj'", INSTALL_NNJ) from error


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a head, out of nested sequentials, in parameter order."""
    names = ("torch.nn.modules.container.Sequential", "nnj.sequential.Sequential")
    if f"{type(module).__module__}.{type(module).__qualname__}" not in names:
        yield module
        return
    assert isinstance(module, nn.Sequential)
    for child in module:  # children() would name a module that is used twice once
        yield from _parts(child)


def _unknown(module: nn.Module, nnj: Any) -> str:
    """The types of what nnj cannot differentiate; "" if there is nothing."""
    parts = list(_parts(module))
    kinds = (nnj.Linear, nnj.AbstractDiagonalJacobian)
    unknown = {type(part) for part in parts if not isinstance(part, kinds)}
    if len({id(part) for part in parts}) < len(parts):
        return "a module that is used twice"
    return ", ".join(sorted(f"{kind.__module__}.{kind.__name__}" for kind in unknown))
