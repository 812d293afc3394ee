"""A folder of images: ``DIR/<class>/*.png``, or without classes ``DIR/*.png``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from laplace_metric._utils.files import digest
from laplace_metric._utils.progress import tqdm
from laplace_metric.cli.sources._source import IMAGES, Notify, ReadOptions, Source, require_items
from laplace_metric.errors import InputError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F")
THREADS = min(8, os.cpu_count() or 1)


def image_source(folder: Path, options: ReadOptions, notify: Notify) -> Source:
    """Ids are paths below ``folder``, classes the folders right below it.

    Raises
    ------
    InputError
        For a folder without images, one with images both in class folders and beside them, and
        (when it is read) an image that cannot be read; the message names the file.
    """
    ids, others = _listed(folder)
    require_items(folder, len(ids), f"image ({', '.join(ENDINGS)})")
    if others:
        notify(f"{folder}: {others:,} files that are no images are left out")
    pixels, ids = readable_images(folder, ids, options, notify)
    sizes = [(name, (folder / name).stat().st_size) for name in ids]
    return Source(
        folder,
        IMAGES,
        tuple(ids),
        _classes(folder, ids),
        lambda rows: pixels.batch([ids[row] for row in rows]),
        digest(json.dumps(sizes)),
        {"size": options.size, "channels": pixels.channels},
    )


def require_images(folder: Path) -> None:
    """Check that there is an image below a folder, without a look at the others.

    Raises
    ------
    InputError
        If not.
    """
    found = any(image for _, image in _files(folder))
    require_items(folder, int(found), f"image ({', '.join(ENDINGS)})")


def readable_images(
    folder: Path, names: list[str], options: ReadOptions, notify: Notify
) -> tuple[Pixels, list[str]]:
    """How files below a folder are read, and their names; without those that cannot be, if asked.

    Raises
    ------
    InputError
        If none can be read.
    """
    channels = options.channels or _guess_channels(folder / names[0], options, notify)
    pixels = Pixels(folder, options.size, channels, options.transform)
    return pixels, _readable(names, pixels, notify) if options.skip_unreadable else names


@dataclass(frozen=True)
class Pixels:
    """Files below a folder as tensors [C, H, W], in [0, 1] unless a transform makes them."""

    folder: Path
    size: int | None
    channels: int
    transform: Any = None

    def batch(self, names: Sequence[str]) -> Tensor:
        """These images [B, C, H, W].

        Raises
        ------
        InputError
            If one cannot be read, or two are of different sizes; the message names them.
        """
        with ThreadPoolExecutor(THREADS) as pool:
            images = list(pool.map(self.one, names))
        for name, image in zip(names, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"{self.folder / name} is {_sides(image)} pixels, {self.folder / names[0]} "
                    f"{_sides(images[0])}: give --size."
                )
        return torch.stack(images)

    def one(self, name: str) -> Tensor:
        """One image [C, H, W]; a file that cannot be read is an ``InputError``."""
        return self.tensor(self.decoded(name))

    def tensor(self, image: Image.Image) -> Tensor:
        """What a model gets [C, H, W] of an image that is grey or RGB already."""
        if self.transform is not None:
            return _transformed(self.transform, image)
        if self.size is not None:
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        array = np.array(image)  # a copy: from_numpy wants to own what it may write to
        planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(planes)).float() / 255

    def converted(self, image: Image.Image) -> Image.Image:
        """An open image as grey or RGB.

        Raises
        ------
        ValueError
            For more than 8 bits a channel.
        """
        _check_depth(image.mode)
        return image.convert("L" if self.channels == 1 else "RGB")

    def decoded(self, name: str) -> Image.Image:
        """The image at its own size, grey or RGB.

        Raises
        ------
        InputError
            If the file cannot be read; the message names it.
        """
        path = self.folder / name
        try:
            with Image.open(path) as file:
                return self.converted(file)
        except Exception as error:  # decoders raise whatever they meet
            raise InputError(
                f"{path} cannot be read as an image ({error}): mend or remove it, or leave such "
                "files out with --skip-unreadable."
            ) from error


def _check_depth(mode: str) -> None:
    if mode.startswith(DEEP):
        raise ValueError(f"{mode} pixels have more than 8 bits")


def _listed(folder: Path) -> tuple[list[str], int]:
    """Paths of the images below a folder, sorted, and how many other files there are."""
    found = list(_files(folder))
    images = [path.relative_to(folder).as_posix() for path, image in found if image]
    return sorted(images), len(found) - len(images)


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    """The files below a folder that are not hidden, and whether each is an image by its name."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(parent) / name, name.lower().endswith(ENDINGS)


def _classes(folder: Path, ids: Sequence[str]) -> tuple[str, ...] | None:
    beside = [name for name in ids if "/" not in name]
    if not beside:
        return tuple(name.split("/", 1)[0] for name in ids)
    if len(beside) < len(ids):
        within = next(name for name in ids if "/" in name)
        raise InputError(
            f"{folder} holds images in class folders ({within}) and beside them ({beside[0]}): "
            "move them all into class folders, or none."
        )
    return None


def _guess_channels(first: Path, options: ReadOptions, notify: Notify) -> int:
    if options.transform is not None:
        return 3
    try:
        with Image.open(first) as image:
            channels, mode = (1 if image.mode in GREY else 3), image.mode
    except Exception:
        return 3  # which image cannot be read is said when it is read
    name = "grey" if channels == 1 else "RGB"
    notify(f"images are read as {name}, as {first} is ({mode}); --channels chooses")
    return channels


def _readable(ids: list[str], pixels: Pixels, notify: Notify) -> list[str]:
    """The images that can be read, after one reading of all of them."""

    def can_be_read(name: str) -> bool:
        try:
            pixels.decoded(name)
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        checks = pool.map(can_be_read, ids)
        valid = list(tqdm(checks, desc="Checking", total=len(ids), leave=False))
    readable = [name for name, ok in zip(ids, valid, strict=True) if ok]
    require_items(pixels.folder, len(readable), "image that can be read")
    if len(readable) < len(ids):
        notify(f"skipped {len(ids) - len(readable):,} of {len(ids):,} images, which cannot be read")
    return readable


def _transformed(transform: Any, image: Image.Image) -> Tensor:
    tensor = transform(image)
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"the model's transform gives a {type(tensor).__name__}: it must give a tensor."
        )
    return tensor


def _sides(image: Tensor) -> str:
    return f"{image.shape[-1]} x {image.shape[-2]}"
