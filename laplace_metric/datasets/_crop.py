"""The preprocessing of most encoders of photographs: scale the image, and cut out its centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError


def centre_square(image: Any, size: int) -> Any:
    """Resize the shorter side of a PIL image to `size` (bilinear), and cut out the centre."""
    from PIL.Image import Resampling

    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def planes_of(picture: Any) -> Float[Tensor, "C H W"]:
    """Return a grey or RGB picture as float32 in [0, 1]."""
    array = np.atleast_3d(np.array(picture)).transpose(2, 0, 1)  # a copy, which torch may own
    return torch.from_numpy(np.ascontiguousarray(array)).float() / 255


Planes = float | tuple[float, ...]


@dataclass(frozen=True)
class CentreCrop:
    """A function from a PIL image to its centre ``(x - mean) / std``, x in [0, 1], [C, size, size].

    The shorter side is scaled to ``size`` (bilinear), then the longer one is cut. What timm,
    torchvision or open_clip bring with a model is better, where one of them is at hand: some scale
    to more than ``size`` before they cut, or bicubic.

    Parameters
    ----------
    size : int
        Side of the square in pixels.
    mean, std : float, or one for each channel
        Numbers that standardise the pixels, default 0 and 1. With 0.5 and 0.5, values run from
        -1 to 1.

    Raises
    ------
    InputError
        If size is below 1, a std is not above 0, or an image has another number of channels.

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
        """Return the tensor of one image."""
        planes = planes_of(centre_square(image, self.size))
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
