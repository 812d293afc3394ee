"""Image sets in memory, selections of their rows, and the two sets of scikit-learn.

Image files as tensors: upright, grey or RGB, cropped; unreadable ones are named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_array, check_count, check_dense, check_name
from laplace_metric.errors import InputError, LabelError, RowError
from laplace_metric.io import only_regular


def named_rows(name: str, rows: Any, n: int) -> Int64[Tensor, " rows"]:
    """Rows 0 .. n - 1 as whole numbers; negative ones count from the end.

    Raises
    ------
    InputError
        For what is neither mask, slice nor whole numbers.
    RowError
        For a row that does not exist, or a mask of another length than n.

    Examples
    --------
    >>> named_rows("rows", [True, False, True], 3), named_rows("rows", slice(1, None), 3)
    (tensor([0, 2]), tensor([1, 2]))
    """
    if isinstance(rows, slice):
        return torch.tensor(range(n)[rows], dtype=torch.int64)
    if isinstance(rows, Tensor):
        rows = check_dense(name, rows).detach().cpu().numpy()
    array = as_array(name, rows if hasattr(rows, "__len__") else list(rows))
    if array.ndim != 1 or (array.dtype.kind not in "biu" and len(array)):
        raise InputError(
            f"{name} has shape {list(array.shape)} and dtype {array.dtype}: pass whole numbers "
            "[n], a slice, or a mask."
        )
    try:
        return torch.from_numpy(np.arange(n)[array if len(array) else []])
    except IndexError as error:
        raise RowError(f"{name}: there are {n} rows, 0 to {n - 1}, but {error}.") from error


def row_loader(
    n: int,
    read: Callable[[list[int]], Any],
    batch_size: int,
    *,
    shuffle: bool = False,
    generator: Seed = None,
    workers: int = 0,
) -> DataLoader[Any]:
    """``read(rows)`` of a batch of rows at once, in order, or in a new order each pass.

    Raises
    ------
    InputError
        For a batch size below 1, or workers below 0.
    """
    check_count("batch_size", batch_size)
    check_count("workers", workers, 0)
    source, rows = as_generator(generator), range(n)
    return DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size,
        sampler=RandomSampler(rows, generator=source) if shuffle else SequentialSampler(rows),
        collate_fn=read,
        num_workers=workers,
        generator=torch.Generator(),  # of the workers' seeds: the global one stays as it is
    )


# Labelled images in memory.


Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory.

    Parameters
    ----------
    images : Tensor [N, C, H, W]
        float32 in [0, 1], or uint8 in 0..255, which `pixels` and `loader` turn into
        float32 in [0, 1] batch by batch, so that a large set stays small in memory.
    labels : Tensor [N], int64
        Class of each image, an index into `class_names`.
    name : str
        Name and split, for example ``"fashion-mnist/train"``.
    class_names : tuple of str
    extras : mapping of str to Tensor [N, ...]
        More about each image, for example ``"cifar10h_counts"`` [N, 10].

    Raises
    ------
    InputError
        If the images are not [N, C, H, W] of dtype uint8 or float32, class names are no tuple of
        names, or an extra has not N rows.
    LabelError
        If the labels are not int64 of shape [N] with values below ``len(class_names)``.

    Examples
    --------
    >>> images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    >>> zeros = ImageSet(images, torch.tensor([0, 1, 0, 1]), "zeros", ("even", "odd"))
    >>> [tuple(x.shape) for x, y in zeros.loader(batch_size=3)]
    [(3, 1, 2, 2), (1, 1, 2, 2)]
    >>> zeros.subset([1, 3]).labels
    tensor([1, 1])
    """

    images: Shaped[Tensor, "N C H W"]
    labels: Int64[Tensor, " N"]
    name: str
    class_names: tuple[str, ...]
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in {"images": self.images, "labels": self.labels}.items():
            if not isinstance(value, Tensor):
                raise InputError(f"{key} is a {type(value).__name__}: pass a tensor.")
            check_dense(key, value)
        names, labels, n = self.class_names, self.labels, len(self.images)
        if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
            raise InputError(f"class_names={names!r:.60}: pass a tuple of names.")
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise InputError(
                f"images must be [N, C, H, W] of dtype uint8 or float32, not "
                f"{list(self.images.shape)} of {self.images.dtype}."
            )
        places = (labels >= 0) & (labels < len(names))
        if labels.dtype != torch.int64 or labels.shape != (n,) or not bool(places.all()):
            raise LabelError(
                f"labels must be int64 of shape [{n}], places 0..{len(names) - 1} in class_names: "
                f"they are {labels.dtype} of shape {list(labels.shape)}, "
                f"{int((~places).sum())} of them other numbers."
            )
        for key, value in self.extras.items():
            if value.shape[:1] != self.labels.shape:
                raise InputError(
                    f"extras[{key!r}] must have {len(self.labels)} rows, one for each image, "
                    f"not shape {list(value.shape)}."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(side) for side in self.images.shape[1:])
        classes = f"{len(self.class_names)} classes"
        return f"ImageSet({self.name!r}, {len(self)} images of {shape}, {classes})"

    def pixels(
        self, rows: Shaped[Tensor, " n"] | slice = slice(None)
    ) -> Float[Tensor, "rows C H W"]:
        """Images of some rows (default: all) as float32 in [0, 1].

        Examples
        --------
        >>> white = torch.full((1, 1, 1, 2), 255, dtype=torch.uint8)
        >>> ImageSet(white, torch.tensor([0]), "white", ("white",)).pixels()
        tensor([[[[1., 1.]]]])
        """
        images = self.images[rows]
        return images.float() / 255 if images.dtype == torch.uint8 else images

    def subset(self, indices: Any) -> ImageSet:
        """The images at `indices`, in that order.

        Parameters
        ----------
        indices : whole numbers [n], a slice, or a mask [N]

        Raises
        ------
        InputError
            For a mask that has not one entry for each image, and rows that do not exist.
        """
        rows = named_rows("indices", indices, len(self))
        extras = {key: value[rows] for key, value in self.extras.items()}
        return replace(self, images=self.images[rows], labels=self.labels[rows], extras=extras)

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        generator: Seed = None,
    ) -> DataLoader[Batch]:
        """Batches (images [b, C, H, W] float32 in [0, 1], labels [b]).

        A batch is cut out of the tensors by one indexing operation; nothing is collated
        image by image. The last batch may be smaller. With `shuffle` the order is drawn anew
        each pass, from `generator` (or its seed) unless it is None.

        Raises
        ------
        InputError
            If `batch_size` is below 1.
        """
        return row_loader(len(self), self._batch, batch_size, shuffle=shuffle, generator=generator)

    def _batch(self, rows: list[int]) -> Batch:
        index = torch.tensor(rows)
        return self.pixels(index), self.labels[index]


# Image sets that come with scikit-learn: no file to fetch, no network.


N_DIGITS_TRAIN = 1_297  # of 1,797; the last 500 are the test split
PHOTOGRAPHS = ("china", "flower")
PATCH = 8
SPLITS = ("train", "test")
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


NAMES = ("digits", "photographs")


def load(
    name: str,
    split: str = "train",
    limit: int | None = None,
    *,
    size: int | None = None,
    colour: bool = False,
) -> ImageSet:
    """Load an image set of scikit-learn.

    Parameters
    ----------
    name : "digits" | "photographs"
        Hand-written digits, float32 [N, 1, 8, 8]: the first 1,297 train, the last 500 test.
        Patches of two photographs that do not overlap, float32 [N, C, size, size], labelled by
        their photograph; the splits alternate like the fields of a chessboard. They are real
        images that are no digits: an out-of-distribution set.
    split : "train" | "test"
    limit : int or None
        Keep at most this many images, evenly spaced over the split.
    size : int or None
        Side of the patches in pixels, default 8; of "photographs" only.
    colour : bool
        Three channels instead of grey; of "photographs" only.

    Raises
    ------
    UnknownNameError
        If `name` or `split` does not exist.
    InputError
        If an option is out of range or of the other set.

    Examples
    --------
    >>> load("digits", "test")
    ImageSet('digits/test', 500 images of 1x8x8, 10 classes)
    """
    check_name("name", name, NAMES)
    check_name("split", split, SPLITS)
    if limit is not None:
        check_count("limit", limit)
    if size is not None:
        check_count("size", size)
    if name != "photographs" and (size is not None or colour):
        raise InputError(f"size= and colour= apply to 'photographs' only, not to {name!r}.")
    if name == "digits":
        classes, (images, labels) = tuple("0123456789"), _digits(split)
    else:
        classes, (images, labels) = PHOTOGRAPHS, _photographs(split, size or PATCH, colour)
    kept = len(labels) if limit is None else min(limit, len(labels))
    rows = torch.arange(kept) * len(labels) // max(kept, 1)  # sorted sets stay mixed
    return ImageSet(images[rows], labels[rows], f"{name}/{split}", classes)


def _digits(split: str) -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    part = slice(N_DIGITS_TRAIN) if split == "train" else slice(N_DIGITS_TRAIN, None)
    images = torch.from_numpy(bunch.images[part]).float().unsqueeze(1) / 16
    return images, torch.from_numpy(bunch.target[part]).long()


def _photographs(split: str, size: int, colour: bool) -> tuple[Tensor, Tensor]:
    patches = [_patches(image, split, size, colour) for image in load_sample_images().images]
    labels = torch.arange(len(patches)).repeat_interleave(torch.tensor([len(p) for p in patches]))
    return torch.cat(patches), labels


def _patches(photograph: npt.NDArray[np.uint8], split: str, size: int, colour: bool) -> Tensor:
    """Fields of one colour of the chessboard, [n, C, size, size] in [0, 1]."""
    image = torch.tensor(photograph).permute(2, 0, 1).float() / 255
    if not colour:
        image = torch.tensordot(torch.tensor(LUMA), image, dims=1).unsqueeze(0)
    if 2 * size > min(image.shape[1:]):
        raise InputError(
            f"size={size} must lie in 1..{min(image.shape[1:]) // 2}, half of the photographs' "
            "shorter side."
        )
    columns = F.unfold(image.unsqueeze(0), size, stride=size)[0].T
    across = image.shape[2] // size
    field = torch.arange(len(columns))
    colour_of_field = (field // across + field % across) % 2
    patches = columns[colour_of_field == (split == "test")]
    return patches.reshape(-1, image.shape[0], size, size)  # [n, C, size, size]


# Image files as tensors: upright, grey or RGB, cropped; unreadable ones are named.

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
