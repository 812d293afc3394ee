"""Image files as tensors, several read at once; unreadable ones are named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplace_metric.datasets._crop import centre_square, planes_of
from laplace_metric.datasets._grey_or_rgb import as_grey_or_rgb
from laplace_metric.errors import InputError
from laplace_metric.io import only_regular

THREADS = min(8, os.cpu_count() or 1)
"""Threads that read the files of a batch."""
MOST_NAMED = 5
"""Unreadable files that a message names."""


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
        Folder from which names of files are seen.
    size : int or None
        Side of a square in pixels; None: images as they are.
    channels : 1 or 3
        Planes of a tensor: 1 for grey, 3 for RGB.
    transform : callable or None
        Function from a PIL image to a tensor; replaces ``size``. None, the default: pixels in [0,
        1].
    crop : bool
        True: the shorter side is scaled to ``size`` and the centre cut out. False, the default:
        the image is scaled to the square, whatever its sides.
    """

    folder: Path
    size: int | None
    channels: int
    transform: Any = None
    crop: bool = False

    def batch(self, names: Sequence[str]) -> Tensor:
        """Return these images [B, C, H, W].

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
        """Return an open PIL image, upright, as grey or RGB; ``ValueError`` above 8 bits."""
        return as_grey_or_rgb(image, self.channels)

    def decoded(self, name: str) -> Any:
        """Return the PIL image at its own size, upright, grey or RGB.

        Raises
        ------
        InputError
            If the file cannot be read; the message names it.
        """
        picture = self._attempt(name)
        self._check_readable([picture])
        return picture

    def unreadable(self, names: Iterable[str]) -> Iterator[bool]:
        """Yield for each file whether it cannot be read; all are decoded."""
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


def _sides(image: Tensor) -> str:
    return f"{image.shape[-1]} x {image.shape[-2]}"
