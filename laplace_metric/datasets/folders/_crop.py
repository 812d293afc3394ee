"""The preprocessing that most encoders of photographs were trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.datasets.folders._picture import centre_square
from laplace_metric.errors import InputError

Planes = float | tuple[float, ...]


@dataclass(frozen=True)
class CentreCrop:
    """A PIL image -> its centre ``(x - mean) / std``, x in [0, 1], [C, size, size].

    The shorter side is scaled to ``size`` (bilinear), then the longer one is cut. What timm,
    torchvision or open_clip bring with a model is better, where one of them is at hand: some scale
    to more than ``size`` before they cut, or bicubic.

    Parameters
    ----------
    size : int
        In pixels.
    mean, std : float, or one for each channel
        With 0.5 and 0.5, values run from -1 to 1.

    Raises
    ------
    InputError
        For a size below 1, a std that is not above 0, or, when called, another number of channels.

    Examples
    --------
    >>> from PIL import Image
    >>> crop = CentreCrop(4, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # of ImageNet
    >>> crop(Image.new("RGB", (30, 20), "white")).shape
    torch.Size([3, 4, 4])
    """

    size: int
    mean: Planes = 0.0
    std: Planes = 1.0

    def __post_init__(self) -> None:
        check_count("size", self.size)
        if not all(value > 0 for value in np.atleast_1d(self.std)):
            raise InputError(f"std={self.std!r}: pass numbers above 0.")

    def __call__(self, image: Any) -> Float[Tensor, "C size size"]:
        """The tensor of one image."""
        array = np.array(centre_square(image, self.size), dtype=np.float32) / 255
        planes = torch.from_numpy(np.atleast_3d(array).transpose(2, 0, 1).copy())
        mean, std = (self._of_planes(name, len(planes)) for name in ("mean", "std"))
        return (planes - mean) / std

    def _of_planes(self, name: str, channels: int) -> Tensor:
        values = torch.tensor(np.atleast_1d(getattr(self, name)), dtype=torch.float32)
        if len(values) not in (1, channels):
            raise InputError(
                f"{name} has {len(values)} numbers, the image {channels} channels: pass one "
                "number, or one for each channel."
            )
        return values[:, None, None]
