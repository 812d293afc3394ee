"""The Jacobian of heads built from nnj's modules, by nnj's own products.

nnj (https://github.com/IlMioFrizzantinoAmabile/nnj) is not on the package index. Its ``Sequential``
stores feature maps that forward hooks collect: they go stale with the next input, are missing with
``add_hooks=False``, and in a deep copy belong to the original. So the modules are run here one by
one without hooks, and every product is given the feature maps of its own input; the user's head is
left unchanged.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.blocks import block_rows
from laplace_metric.errors import HeadError, MissingPackageError
from laplace_metric.heads._functional import FunctionalJacobian
from laplace_metric.heads._jacobian import JACOBIAN_BYTES

INSTALL_NNJ = "pip install --no-deps git+https://github.com/IlMioFrizzantinoAmabile/nnj"


class HooklessChain(nn.Module):
    """nnj modules one after the other; their parameters are shared, their hooks do not run."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def feature_maps(self, features: Tensor) -> list[Tensor]:
        """Return h and the output of every module."""
        maps = [features]
        for part in self.parts:
            maps.append(part.forward(maps[-1]))
        return maps

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Return raw embeddings z of the features h."""
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
        """Return nnj's chain with the feature maps of these inputs, and its output."""
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
        """Compute the diagonal in blocks of points: nnj gives one a point [b, P]."""
        step = block_rows(8 * self.n_parameters, JACOBIAN_BYTES)
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
    """Yield the layers of a head, out of nested sequentials, in parameter order."""
    names = ("torch.nn.modules.container.Sequential", "nnj.sequential.Sequential")
    if f"{type(module).__module__}.{type(module).__qualname__}" not in names:
        yield module
        return
    assert isinstance(module, nn.Sequential)
    for child in module:  # children() would name a module that is used twice once
        yield from _parts(child)


def _unknown(module: nn.Module, nnj: Any) -> str:
    """Return the types of what nnj cannot differentiate; "" if there is nothing."""
    parts = list(_parts(module))
    kinds = (nnj.Linear, nnj.AbstractDiagonalJacobian)
    unknown = {type(part) for part in parts if not isinstance(part, kinds)}
    if len({id(part) for part in parts}) < len(parts):
        return "a module that is used twice"
    return ", ".join(sorted(f"{kind.__module__}.{kind.__name__}" for kind in unknown))
