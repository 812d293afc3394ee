"""Dense float64 oracles: slow, independent of the closed forms, for tests and for doubters.

They enumerate all ordered pairs, differentiate the pair loss and the head with autograd, and share
no formula with the package.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev

from laplace_metric.errors import InputError


def pair_loss(distance: str, f: Tensor) -> Tensor:
    """l of one pair, f [2, Z]: 1/2 |f_1 - f_2|^2, or 1 - cos(f_1, f_2)."""
    if distance == "euclidean":
        return 0.5 * (f[0] - f[1]).square().sum()
    return 1 - (f[0] @ f[1]) / (f[0].norm() * f[1].norm())


def all_pair_targets(labels: Tensor, coordinates: Tensor, margin: float | None) -> Tensor:
    """y_ij [N, N] over all ordered pairs, straight from the definition."""
    same = labels[:, None] == labels[None, :]
    gaps = (coordinates[:, None] - coordinates[None, :]).norm(dim=-1)
    near = torch.ones_like(same) if margin is None else gaps <= margin
    positive = same.double() / same.sum()
    return positive - (~same & near).double() / max(1, int((~same).sum()))


def dense_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    distance: str,
    normalized: bool,
    cross: bool,
) -> Tensor:
    """``sum_ij y_ij [J_i; J_j]^T d2l [J_i; J_j]`` [P, P] in float64, pair by pair with autograd.

    Parameters
    ----------
    features : Tensor [N, D], weight : Tensor [Z, D], bias : Tensor [Z] or None
    targets : Tensor [N, N]
        y_ij of the ordered pairs that count.
    cross : bool
        Keep the blocks that couple the two points.

    Examples
    --------
    >>> x, w = torch.randn(3, 2), torch.randn(2, 2)
    >>> y = all_pair_targets(torch.tensor([0, 0, 1]), x, None)
    >>> kinds = dict(distance="arccos", normalized=False, cross=True)
    >>> dense_ggn(x, w, None, y, **kinds).shape
    torch.Size([4, 4])
    """
    if len(targets) != len(features):
        raise InputError(f"targets is {tuple(targets.shape)} for {len(features)} features.")
    h, theta = features.double(), _theta(weight, bias)
    lengths = tuple(weight.shape)
    # arccos owns its normalisation, so there the network's own one drops out of the composition
    unit = normalized and distance == "euclidean"

    def network(parameters: Tensor, x: Tensor) -> Tensor:
        w = parameters[: lengths[0] * lengths[1]].reshape(lengths)
        z = w @ x + parameters[lengths[0] * lengths[1] :] if bias is not None else w @ x
        return z / z.norm() if unit else z

    outputs = torch.stack([network(theta, x) for x in h])
    jacobians = torch.stack([jacrev(network)(theta, x) for x in h])  # [N, Z, P]
    total = torch.zeros(len(theta), len(theta), dtype=torch.float64)
    for i, j in targets.nonzero().tolist():
        blocks = hessian(lambda f: pair_loss(distance, f))(torch.stack([outputs[i], outputs[j]]))
        if not cross:
            blocks = blocks * torch.eye(2, dtype=torch.float64)[:, None, :, None]
        both = torch.stack([jacobians[i], jacobians[j]])  # [2, Z, P]
        total += targets[i, j] * torch.einsum("azp,azbw,bwq->pq", both, blocks, both)
    return total


def _theta(weight: Tensor, bias: Tensor | None) -> Tensor:
    parts = [weight.double().flatten()] + ([] if bias is None else [bias.double()])
    return nn.utils.parameters_to_vector(parts)
