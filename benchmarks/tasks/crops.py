"""Smaller views of images: less information, so more uncertainty (Kirchhof et al. 2023a, b)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 0.25


def kept_shares(n: int, seed: int = 0) -> Tensor:
    """Side of each crop over the side of its image [n], from Unif(0.25, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return SMALLEST + (1 - SMALLEST) * torch.rand(n, generator=generator)


def cropped(images: Tensor, kept: Tensor, seed: int = 1) -> Tensor:
    """A random square of each image, resized to the image's size.

    Parameters
    ----------
    images : Tensor [N, C, H, W] in [0, 1]
    kept : Tensor [N]
        Share of the side.

    Returns
    -------
    Tensor [N, C, H, W]

    Examples
    --------
    >>> cropped(torch.ones(5, 1, 8, 8), kept_shares(5)).shape
    torch.Size([5, 1, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    # coordinates of affine_grid: [-1, 1] is the whole image
    centre = (2 * torch.rand(len(images), 2, generator=generator) - 1) * (1 - kept)[:, None]
    matrices = torch.zeros(len(images), 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = kept
    matrices[:, :, 2] = centre
    grid = F.affine_grid(matrices.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).clamp(0, 1)
