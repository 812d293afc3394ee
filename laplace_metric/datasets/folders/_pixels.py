"""Image files as tensors, several at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.files import sha256_of
from laplace_metric.datasets.folders._picture import GREY, as_grey_or_rgb, centre_square
from laplace_metric.errors import InputError

THREADS = min(8, os.cpu_count() or 1)
MOST_NAMED = 5


class Remedies(NamedTuple):
    """What an error tells to do, in the words of Python or of the command line."""

    unreadable: str = (
        "leave such files out with load_folder(..., skip_unreadable=True); unreadable() lists all"
    )
    sizes: str = "size=224, or a transform that makes them equal"


IN_PYTHON = Remedies()


class Unreadable(NamedTuple):
    """A file that is no whole image, and why."""

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
    remedies : Remedies
        For errors.
    """

    folder: Path
    size: int | None
    channels: int
    transform: Any = None
    crop: bool = False
    remedies: Remedies = IN_PYTHON

    def batch(self, names: Sequence[str]) -> Tensor:
        """These images [B, C, H, W].

        Raises
        ------
        InputError
            If some cannot be read, or two are of different sizes; the message names them.
        """
        with ThreadPoolExecutor(THREADS) as pool:
            images = list(pool.map(self._read, names))
        self._check_readable([one for one in images if isinstance(one, Unreadable)])
        for name, image in zip(names, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"{self.folder / name} is {_sides(image)} pixels, {self.folder / names[0]} "
                    f"{_sides(images[0])}: give {self.remedies.sizes}."
                )
        return torch.stack(images)

    def hashes(self, names: Sequence[str]) -> list[str]:
        """sha256 of the bytes of each file."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda name: sha256_of(self.folder / name), names))

    def one(self, name: str) -> Tensor:
        """One image [C, H, W]; ``InputError`` as of `decoded`."""
        return self.tensor(self.decoded(name))

    def tensor(self, picture: Any) -> Tensor:
        """What a model gets [C, H, W] of a picture that is grey or RGB already."""
        if self.transform is not None:
            return _transformed(self.transform, picture)
        if self.size is not None:
            picture = _squared(picture, self.size, crop=self.crop)
        array = np.array(picture)  # a copy: from_numpy wants to own what it may write to
        planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(planes)).float() / 255

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
        if isinstance(picture, Unreadable):
            self._check_readable([picture])
        return picture

    def unreadable(self, names: Iterable[str]) -> Iterator[Unreadable | None]:
        """Of each file why it cannot be read, None where it can; all are decoded."""
        with ThreadPoolExecutor(THREADS) as pool:
            yield from pool.map(self._why_not, names)

    def _why_not(self, name: str) -> Unreadable | None:
        picture = self._attempt(name)
        return picture if isinstance(picture, Unreadable) else None

    def _read(self, name: str) -> Any:
        picture = self._attempt(name)
        return picture if isinstance(picture, Unreadable) else self.tensor(picture)

    def _attempt(self, name: str) -> Any:
        from PIL import Image  # only here and below: most users read no photographs

        path = self.folder / name
        if path.exists() and not path.is_file():  # reading a pipe or a device may never end
            return Unreadable(path, "it is not a regular file")
        try:
            with Image.open(path) as file:
                return self.converted(file)
        except Exception as error:  # decoders raise whatever they meet
            return Unreadable(path, str(error))

    def _check_readable(self, found: Sequence[Unreadable]) -> None:
        if not found:
            return
        named = ", ".join(f"{one.path} ({one.why})" for one in found[:MOST_NAMED])
        what = f"{found[0].path} cannot be read as an image ({found[0].why}): mend or remove it"
        if len(found) > 1:
            more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
            what = (
                f"{len(found):,} files cannot be read as images, {named}{more}: mend or remove them"
            )
        raise InputError(f"{what}, or {self.remedies.unreadable}.")


def is_grey(path: Path) -> tuple[bool, str] | None:
    """Whether an image file is grey, and its mode; None where it cannot be read."""
    from PIL import Image

    if not path.is_file():
        return None
    try:
        with Image.open(path) as image:
            return image.mode in GREY, image.mode
    except Exception:
        return None


def _squared(picture: Any, size: int, *, crop: bool) -> Any:
    from PIL.Image import Resampling

    if crop:
        return centre_square(picture, size)
    return picture.resize((size, size), Resampling.BILINEAR)


def _transformed(transform: Any, picture: Any) -> Tensor:
    tensor = transform(picture)
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"the model's transform gives a {type(tensor).__name__}: it must give a tensor."
        )
    return tensor


def _sides(image: Tensor) -> str:
    return f"{image.shape[-1]} x {image.shape[-2]}"
