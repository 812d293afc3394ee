"""Labelled images in memory, and their split by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import as_tensor, check_dense
from laplace_metric.datasets._rows import named_rows
from laplace_metric.errors import InputError, LabelError

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
        names = self.class_names
        if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
            raise InputError(f"class_names={names!r:.60}: pass a tuple of names.")
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise InputError(
                f"images must be [N, C, H, W] of dtype uint8 or float32, not "
                f"{list(self.images.shape)} of {self.images.dtype}."
            )
        _check_labels(self.labels, len(self.images), len(self.class_names))
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
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be at least 1.")
        data, source = _Rows(self), as_generator(generator)
        order = RandomSampler(data, generator=source) if shuffle else SequentialSampler(data)
        # DataLoader draws a worker seed every pass: its own generator keeps the global one intact
        return DataLoader(
            data,
            batch_size=None,
            sampler=BatchSampler(order, batch_size, drop_last=False),
            generator=torch.Generator(),
        )


class _Rows(Dataset[Batch]):
    """Indexed by a list of rows, a batch at once."""

    def __init__(self, image_set: ImageSet) -> None:
        self.image_set = image_set

    def __len__(self) -> int:
        return len(self.image_set)

    def __getitem__(self, rows: list[int]) -> Batch:
        index = torch.tensor(rows)
        return self.image_set.pixels(index), self.image_set.labels[index]


def _check_labels(labels: Tensor, n_images: int, n_classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (n_images,):
        raise LabelError(
            f"labels must be int64 of shape [{n_images}], one for each image, not "
            f"{labels.dtype} of shape {list(labels.shape)}."
        )
    if n_images and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise LabelError(
            f"labels must lie in 0..{n_classes - 1}, one class_names entry each, but they run "
            f"from {int(labels.min())} to {int(labels.max())}."
        )


def split_classes(
    image_set: ImageSet, train_classes: int | Iterable[int]
) -> tuple[ImageSet, ImageSet]:
    """Split by class into (seen, unseen), the protocol of zero-shot retrieval.

    Parameters
    ----------
    image_set : ImageSet
    train_classes : int or iterable of int
        The seen classes: the first so many, or a list of labels. Labels and class names keep
        their meaning in both halves.

    Raises
    ------
    InputError
        If a class is out of range, or one half would hold no class.

    Examples
    --------
    >>> images = torch.zeros(4, 1, 2, 2)
    >>> four = ImageSet(images, torch.tensor([0, 1, 2, 1]), "four", ("a", "b", "c"))
    >>> seen, unseen = split_classes(four, 2)
    >>> seen.labels, unseen.labels
    (tensor([0, 1, 1]), tensor([2]))
    """
    n_classes = len(image_set.class_names)
    seen = _chosen(train_classes, n_classes)
    if not 0 < len(seen) < n_classes or seen[0] < 0 or seen[-1] >= n_classes:
        raise InputError(
            f"train_classes={train_classes!r} must name at least one and not all of the "
            f"{n_classes} classes 0..{n_classes - 1}."
        )
    mask = torch.isin(image_set.labels, torch.tensor(seen))
    return image_set.subset(mask), image_set.subset(~mask)


def _chosen(train_classes: Any, n_classes: int) -> list[int]:
    """The labels that ``split_classes`` is told, ascending; as many as there are, if it is more."""
    if isinstance(train_classes, (int, np.integer)) and not isinstance(train_classes, bool):
        return list(range(min(int(train_classes), n_classes)))
    listed = train_classes
    if isinstance(train_classes, Iterable) and not isinstance(train_classes, (Tensor, np.ndarray)):
        listed = list(train_classes)
    labels = as_tensor("train_classes", listed)
    if labels.ndim != 1 or (labels.is_floating_point() and len(labels)):
        raise InputError(
            f"train_classes={train_classes!r:.60}: pass a number of classes, or labels."
        )
    return sorted(set(map(int, labels.tolist())))
