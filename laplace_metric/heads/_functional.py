"""The Jacobian of any head by ``torch.func``: the general path, and the slow one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vjp, vmap

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._layout import Layout

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class FunctionalJacobian(HeadJacobian):
    """A module [B, D] -> [B, Z] that treats its inputs one by one in eval mode.

    Parameters
    ----------
    module : nn.Module
        Head that is differentiated.
    n_outputs : int
        Z, the width of its output.

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
        """Return parameters [P] by their names."""
        named = self._named()
        parts = vector.split([p.numel() for p in named.values()])
        pairs = zip(named.items(), parts, strict=True)
        return {name: part.view_as(p) for (name, p), part in pairs}

    def _private(self, *, own_tensors: bool = False) -> nn.Module:
        """Return the module in eval mode, copied without its tensors, or with them.

        ``functional_call`` puts other parameters into a module for a while: into the user's own,
        other threads would run with them.
        """
        parts = list(self.module.modules())
        held = [x for part in parts for x in vars(part).values() if isinstance(x, Tensor)]
        shared = [*self.module.parameters(), *self.module.buffers(), *held]
        memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
        if own_tensors:  # what is computed with gradients is no leaf, which nothing copies deeply
            memo = {id(tensor): tensor.detach().clone() for tensor in held}
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

    def owned(self) -> FunctionalJacobian:
        return replace(self, module=self._private(own_tensors=True))

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
        """Compute ``sum_i V_i J_i``, one backward pass a row of V: no [B, Z, P] array."""
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
