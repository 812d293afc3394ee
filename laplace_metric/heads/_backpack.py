"""The Jacobian of a head by BackPACK's first-order extensions (the extra ``backpack``).

A diagonal of ``J^T B J`` takes one backward pass for each eigenvector of the blocks: with
``B_i = sum_r b_ir q_ir q_ir^T``

    diag(sum_i J_i^T B_i J_i) = sum_r sum_i b_ir (J_i^T q_ir)^2

and BackPACK's ``SumGradSquared`` computes ``sum_i (J_i^T v_i)^2`` for cotangents
``v = sqrt(|b|) q``. B may have either sign: positive and negative eigenvalues are summed apart, so
that no square root is taken of a negative number and no block has to be projected.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import HeadError, MissingPackageError
from laplace_metric.heads._functional import FunctionalJacobian

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
    """Copy a head in eval mode, float32 at least, without in-place steps: BackPACK forbids them."""
    private = copy.deepcopy(module).eval()
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in private.parameters()):
        private = private.float()
    for part in private.modules():
        if getattr(part, "inplace", False):
            setattr(part, "inplace", False)  # noqa: B010
    return private
