"""The analytic Jacobian of a linear head, with and without bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LinearJacobian:
    """``z = W h + b``: ``J_i = I_Z (x) [h_i; 1]^T``, with theta = (W row-major, b).

    Parameters
    ----------
    weight : Tensor [Z, D]
    bias : Tensor [Z] or None

    Examples
    --------
    >>> head = LinearJacobian.of(nn.Linear(3, 2))
    >>> head.jacobian(torch.ones(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Linear) -> LinearJacobian:
        """Read an ``nn.Linear``; tensors are shared (half precision becomes a float32 copy)."""
        bias = None if module.bias is None else at_least_float32(module.bias.detach())
        return cls(at_least_float32(module.weight.detach()), bias)

    @property
    def n_parameters(self) -> int:
        """P = Z D (+ Z with a bias)."""
        return self.weight.numel() + (0 if self.bias is None else self.bias.numel())

    @property
    def parameters(self) -> Tensor:
        """theta [P], a copy."""
        return self.flatten(self.weight, self.bias)

    def flatten(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(W [Z, D], b [Z]) as one vector [P] in the order of ``parameters_to_vector``."""
        return torch.cat([weight.flatten()] + ([] if bias is None else [bias]))

    def flatten_augmented(self, values: Tensor) -> Tensor:
        """[Z, D'] with the bias as last column (``augment``) -> [P] in parameter order."""
        n_features = self.weight.shape[1]
        bias = None if self.bias is None else values[:, n_features]
        return self.flatten(values[:, :n_features], bias)

    def unflatten(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., P] -> (W [..., Z, D], b [..., Z] or None)."""
        size = self.weight.numel()
        weight = vector[..., :size].unflatten(-1, self.weight.shape)
        return weight, None if self.bias is None else vector[..., size:]

    def augment(self, features: Tensor) -> Tensor:
        """h [B, D] -> [h, 1] [B, D'], D' = D + 1 with a bias and D without."""
        if self.bias is None:
            return features
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1)

    def raw(self, features: Tensor) -> Tensor:
        """z = W h + b [B, Z]."""
        return nn.functional.linear(features, self.weight, self.bias)

    def jacobian(self, features: Tensor) -> Tensor:
        """J [B, Z, P], materialised."""
        h = self.augment(features)
        identity = torch.eye(self.weight.shape[0], dtype=h.dtype, device=h.device)
        full = torch.einsum("kl,bd->bkld", identity, h)  # [B, Z, Z, D']
        size = self.weight.shape[1]
        parts = [full[..., :size].flatten(2)]
        return torch.cat(parts + ([] if self.bias is None else [full[..., size]]), dim=-1)

    def variance(self, features: Tensor, parameter_variance: Tensor) -> Tensor:
        """``Var[z_k] = sum_d h_d^2 S_kd + S_k`` [B, Z], from ``J S J^T``.

        One product of [B, D] and [D, Z]; no sampling and no [B, Z, P] array.
        """
        weight, bias = self.unflatten(parameter_variance)
        return nn.functional.linear(features.square(), weight, bias)

    def perturbed(self, features: Tensor, parameters: Tensor) -> Tensor:
        """z [n, B, Z] under n parameter vectors [n, P]: one product [B, D] x [D, n Z]."""
        weight, bias = self.unflatten(parameters)
        z = features @ weight.flatten(0, 1).mT  # [B, n Z]
        z = z.unflatten(1, weight.shape[:2]).transpose(0, 1)  # [n, B, Z]
        return z if bias is None else z + bias[:, None, :]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself in float32 or float64; a float32 copy of anything shorter."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
