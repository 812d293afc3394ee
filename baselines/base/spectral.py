"""Spectral normalisation of hidden layers: no layer stretches a distance."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrizations, parametrize

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def spectral_normalize(model: nn.Module, head: nn.Module) -> None:
    """Divide the weight of each linear and convolutional layer, but the head's, by its norm.

    The norm is the largest singular value, followed by power iteration in train mode (Miyato et
    al. 2018); a kernel counts as the matrix [out, in * kernel]. Layers that have it are left alone.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> spectral_normalize(model, model[2])
    >>> bool((torch.linalg.matrix_norm(model[0].weight, 2) - 1).abs() < 1e-2)
    True
    >>> parametrize.is_parametrized(model[2])
    False
    """
    kept = {id(module) for module in head.modules()}
    for module in list(model.modules()):
        hidden = isinstance(module, LAYERS) and id(module) not in kept
        if hidden and not parametrize.is_parametrized(module, "weight"):
            parametrizations.spectral_norm(module)
