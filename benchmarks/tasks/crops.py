"""Smaller views of images: less information, so more uncertainty (Kirchhof et al. 2023a, b)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 0.25


def cropped(images: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A random square of each image, resized to the image's size; and its share of the side.

    Parameters
    ----------
    images : Tensor [N, C, H, W] in [0, 1]

    Returns
    -------
    crops : Tensor [N, C, H, W]
    kept : Tensor [N]
        Side of the crop over the side of the image, from Unif(0.25, 1).

    Examples
    --------
    >>> crops, kept = cropped(torch.ones(5, 1, 8, 8))
    >>> crops.shape, bool((kept >= 0.25).all())
    (torch.Size([5, 1, 8, 8]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(images)
    kept = SMALLEST + (1 - SMALLEST) * torch.rand(n, generator=generator)
    room = 1 - kept  # centres, in the coordinates of grid_sample: [-1, 1] is the whole image
    centre = (2 * torch.rand(n, 2, generator=generator) - 1) * room[:, None]
    matrices = torch.zeros(n, 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = kept
    matrices[:, :, 2] = centre
    grid = F.affine_grid(matrices.to(images), list(images.shape), align_corners=False)
    crops = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return crops.clamp(0, 1), kept
