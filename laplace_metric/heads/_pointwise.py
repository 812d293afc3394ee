"""A 1x1 convolution as a head: a linear layer on the mean of its map.

With h_p [D] the features at place p of a map, ``z_p = W h_p + b`` is what a 1x1 convolution gives
there, and average pooling after it

    z = 1/P sum_p z_p = W (1/P sum_p h_p) + b

is a linear layer on the mean features (Lin, Chen & Yan 2014, "Network in network"): the same W and
b, so the same Jacobian and posterior. On a map of one place nothing is pooled.
"""

from __future__ import annotations

from typing import TypeGuard

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Of exactly these types: subclasses may change the weights before they are used."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class PointwiseHead(nn.Module):
    """``h -> W h + b`` of a 1x1 convolution, whose parameters it shares.

    Parameters
    ----------
    conv : nn.Conv1d, nn.Conv2d or nn.Conv3d
        A convolution for which ``is_pointwise`` is true.

    Examples
    --------
    >>> import torch
    >>> head, maps = PointwiseHead(nn.Conv2d(4, 3, 1)), torch.randn(2, 4, 5, 6)
    >>> torch.allclose(head(averaged(maps)), averaged(head.conv(maps)), atol=1e-6)
    True
    """

    def __init__(self, conv: Convolution) -> None:
        super().__init__()
        self.conv = conv

    @property
    def weight(self) -> Float[Tensor, "Z D"]:
        """W."""
        return self.conv.weight.flatten(1)

    @property
    def bias(self) -> Float[Tensor, " Z"] | None:
        """The bias b, if it has one."""
        return self.conv.bias

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Return raw embeddings of mean features."""
        return nn.functional.linear(features, self.weight, self.bias)


def is_pointwise(module: nn.Module) -> TypeGuard[Convolution]:
    """Return whether a module is a convolution that sees one place at a time, and every place.

    Examples
    --------
    >>> is_pointwise(nn.Conv2d(4, 3, 1)), is_pointwise(nn.Conv2d(4, 3, 3, padding=1))
    (True, False)
    >>> is_pointwise(nn.Conv2d(4, 4, 1, groups=2)), is_pointwise(nn.Conv2d(4, 3, 1, stride=2))
    (False, False)
    """
    if type_before_parametrizations(module) not in CONVOLUTIONS:
        return False
    assert isinstance(module, CONVOLUTIONS)
    single = {*module.kernel_size, *module.stride} == {1} and module.groups == 1
    return single and module.padding in ("same", "valid", (0,) * len(module.kernel_size))


def averaged(maps: Float[Tensor, "B D *places"]) -> Float[Tensor, "B D"]:
    """Return the mean of each map over its places.

    Examples
    --------
    >>> import torch
    >>> averaged(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2.]])
    """
    return maps.flatten(2).mean(2)
