"""Image files as tensors: upright, grey or RGB, cropped; unreadable ones are named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError
from laplace_metric.io import only_regular, sha256_of

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F")
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")


def as_grey_or_rgb(image: Any, channels: int) -> Any:
    """A PIL image turned upright, on white where it is transparent, in mode "L" or "RGB".

    Raises
    ------
    ValueError
        For more than 8 bits a channel.

    Examples
    --------
    >>> from PIL import Image
    >>> as_grey_or_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0)), 3).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode.startswith(DEEP):
        raise ValueError(f"{image.mode} pixels have more than 8 bits")
    from PIL import Image, ImageOps  # only here and below: most users read no photographs

    with suppress(Exception):  # a damaged note of the camera spoils no picture
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in TRANSPARENT or "transparency" in image.info:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured)
    return image.convert("L" if channels == 1 else "RGB")


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


# The preprocessing that most encoders of photographs were trained with.


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


# Image files as tensors, several at once.


THREADS = min(8, os.cpu_count() or 1)
MOST_NAMED = 5


class Unreadable(NamedTuple):
    """A file that is not a complete image, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Pixels:
    """Files below a folder as tensors [C, H, W], in [0, 1] unless a transform makes them.

    Parameters
    ----------
    folder : Path
    size : int or None
        Side of a square in pixels; None: images as they are.
    channels : 1 or 3
        Grey or RGB.
    transform : callable or None
        PIL image -> tensor; replaces ``size``.
    crop : bool
        The shorter side is scaled to ``size`` and the centre cut out; otherwise the image is
        scaled to the square, whatever its sides.
    """

    folder: Path
    size: int | None
    channels: int
    transform: Any = None
    crop: bool = False

    def batch(self, names: Sequence[str]) -> Tensor:
        """These images [B, C, H, W].

        Raises
        ------
        InputError
            If some cannot be read, or two are of different sizes; the message names them.
        """
        with ThreadPoolExecutor(THREADS) as pool:
            images = list(pool.map(self._read, names))
        self._check_readable(images)
        for name, image in zip(names, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"{self.folder / name} is {_sides(image)} pixels, {self.folder / names[0]} "
                    f"{_sides(images[0])}: give size=224, or a "
                    "transform that makes them equal."
                )
        return torch.stack(images)

    def hashes(self, names: Sequence[str]) -> list[str]:
        """sha256 of the bytes of each file."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda name: sha256_of(self.folder / name), names))

    def tensor(self, picture: Any) -> Tensor:
        """Return the model's input [C, H, W] for a picture that is grey or RGB already."""
        if self.transform is not None:
            tensor = self.transform(picture)
            if not isinstance(tensor, Tensor):
                raise InputError(
                    f"the model's transform gives a {type(tensor).__name__}: it must give a tensor."
                )
            return tensor
        if self.size is not None and self.crop:
            picture = centre_square(picture, self.size)
        elif self.size is not None:
            from PIL.Image import Resampling

            picture = picture.resize((self.size, self.size), Resampling.BILINEAR)
        return planes_of(picture)

    def converted(self, image: Any) -> Any:
        """An open PIL image, upright, as grey or RGB; ``ValueError`` for more than 8 bits."""
        return as_grey_or_rgb(image, self.channels)

    def decoded(self, name: str) -> Any:
        """The PIL image at its own size, upright, grey or RGB.

        Raises
        ------
        InputError
            If the file cannot be read; the message names it.
        """
        picture = self._attempt(name)
        self._check_readable([picture])
        return picture

    def unreadable(self, names: Iterable[str]) -> Iterator[bool]:
        """Return for each file whether it cannot be read; all are decoded."""
        with ThreadPoolExecutor(THREADS) as pool:
            yield from pool.map(lambda name: isinstance(self._attempt(name), Unreadable), names)

    def _read(self, name: str) -> Any:
        picture = self._attempt(name)
        return picture if isinstance(picture, Unreadable) else self.tensor(picture)

    def _attempt(self, name: str) -> Any:
        from PIL import Image

        path = self.folder / name
        try:  # an open file: of a path, Pillow 13 maps a grey TIFF on its side row by wrong row
            with open(path, "rb", opener=only_regular) as file, Image.open(file) as image:
                return self.converted(image)
        except Exception as error:  # decoders raise whatever they meet
            return Unreadable(path, str(error))

    def _check_readable(self, images: Sequence[Any]) -> None:
        found = [one for one in images if isinstance(one, Unreadable)]
        if not found:
            return
        named = ", ".join(f"{one.path} ({one.why})" for one in found[:MOST_NAMED])
        what = f"{found[0].path} cannot be read as an image ({found[0].why}): mend or remove it"
        if len(found) > 1:
            more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
            what = (
                f"{len(found):,} files cannot be read as images, {named}{more}: mend or remove them"
            )
        raise InputError(f"{what}, or leave such files out with skip_unreadable=True.")


def is_grey(path: Path) -> tuple[bool, str] | None:
    """Return whether an image file is grey, and its mode; None where it cannot be read."""
    from PIL import Image

    try:
        with open(path, "rb", opener=only_regular) as file, Image.open(file) as image:
            return image.mode in GREY, image.mode
    except Exception:
        return None


def _sides(image: Tensor) -> str:
    return f"{image.shape[-1]} x {image.shape[-2]}"
