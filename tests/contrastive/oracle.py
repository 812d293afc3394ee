"""Dense float64 oracles, independent of the closed forms: references for the tests.

They enumerate all ordered pairs, differentiate the pair loss and the head with autograd, and share
no formula with the package.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from laplace_metric.errors import InputError


def pair_loss(distance: str, f: Tensor) -> Tensor:
    """l of one pair, f [2, Z]: 1/2 |f_1 - f_2|^2, or 1 - cos(f_1, f_2)."""
    if distance == "euclidean":
        return 0.5 * (f[0] - f[1]).square().sum()
    return 1 - (f[0] @ f[1]) / (f[0].norm() * f[1].norm())


def all_pair_weights(labels: Tensor, coordinates: Tensor, margin: float | None) -> Tensor:
    """y_ij [N, N] over all ordered pairs, straight from the definition."""
    same = labels[:, None] == labels[None, :]
    gaps = (coordinates[:, None] - coordinates[None, :]).norm(dim=-1)
    near = torch.ones_like(same) if margin is None else gaps <= margin
    positive = same.double() / same.sum()
    return positive - (~same & near).double() / max(1, int((~same).sum()))


def dense_ggn(
    features: Tensor,
    head: nn.Module,
    weights: Tensor,
    *,
    distance: str,
    normalized: bool,
    cross: bool,
) -> Tensor:
    """``sum_ij y_ij [J_i; J_j]^T d2l [J_i; J_j]`` [P, P] in float64, pair by pair with autograd.

    Parameters
    ----------
    features : Tensor [N, D]
    head : nn.Module
        [N, D] -> [N, Z] in float64, in eval mode.
    weights : Tensor [N, N]
        y_ij of the ordered pairs that count.
    cross : bool
        Keep the blocks that couple the two points.

    Raises
    ------
    InputError
        If weights and features differ in length.

    Examples
    --------
    >>> x, head = torch.randn(3, 2).double(), nn.Linear(2, 2, bias=False).double()
    >>> y = all_pair_weights(torch.tensor([0, 0, 1]), x, None)
    >>> dense_ggn(x, head, y, distance="arccos", normalized=False, cross=True).shape
    torch.Size([4, 4])
    """
    if len(weights) != len(features):
        raise InputError(f"weights is {tuple(weights.shape)} for {len(features)} features.")
    # arccos owns its normalisation, so there the network's own one drops out of the composition
    unit = normalized and distance == "euclidean"
    outputs, jacobians = _outputs_and_jacobians(head, features.double(), unit=unit)
    total = torch.zeros(jacobians.shape[2], jacobians.shape[2], dtype=torch.float64)
    for i, j in weights.nonzero().tolist():
        blocks = hessian(lambda f: pair_loss(distance, f))(torch.stack([outputs[i], outputs[j]]))
        if not cross:
            blocks = blocks * torch.eye(2, dtype=torch.float64)[:, None, :, None]
        both = torch.stack([jacobians[i], jacobians[j]])  # [2, Z, P]
        total += weights[i, j] * torch.einsum("azp,azbw,bwq->pq", both, blocks, both)  # [P, P]
    return total


def _outputs_and_jacobians(head: nn.Module, h: Tensor, *, unit: bool) -> tuple[Tensor, Tensor]:
    """f [N, Z] and df/dtheta [N, Z, P] by autograd, one point at a time."""
    parameters = {name: p.detach() for name, p in head.named_parameters()}

    def network(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        z = functional_call(head, theta, (x[None],))[0]
        return z / z.norm() if unit else z

    rows = [jacrev(network)(parameters, x) for x in h]
    flat = [torch.cat([part.flatten(1) for part in row.values()], dim=1) for row in rows]
    return torch.stack([network(parameters, x) for x in h]).detach(), torch.stack(flat)
