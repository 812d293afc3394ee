"""Labelled images in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.validation import check_dense
from laplace_metric.datasets._chosen_rows import chosen_rows, row_loader
from laplace_metric.errors import InputError, LabelError

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory.

    Parameters
    ----------
    images : Tensor [N, C, H, W]
        Pixels as float32 in [0, 1], or uint8 in 0..255, which `pixels` and `loader` turn into
        float32 in [0, 1] batch by batch, so that a large set stays small in memory.
    labels : Tensor [N], int64
        Class of each image, an index into `class_names`.
    name : str
        Name and split, for example ``"fashion-mnist/train"``.
    class_names : tuple of str
        Name of each class.
    extras : mapping of str to Tensor [N, ...]
        Further tensors about each image, for example ``"cifar10h_counts"`` [N, 10]. Default: none.

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

    def pixels(self, rows: Any = slice(None)) -> Float[Tensor, "*rows C H W"]:
        """Return the images of some rows as float32 in [0, 1].

        Parameters
        ----------
        rows : whole numbers [n], a slice, or a mask [N]
            Images to return; negative numbers count from the end. One number gives
            one image [C, H, W]. Default: all.

        Raises
        ------
        InputError
            If ``rows`` is neither a mask, a slice nor whole numbers.
        RowError
            If a row does not exist.

        Examples
        --------
        >>> white = torch.full((1, 1, 1, 2), 255, dtype=torch.uint8)
        >>> ImageSet(white, torch.tensor([0]), "white", ("white",)).pixels()
        tensor([[[[1., 1.]]]])
        """
        if isinstance(rows, int) and not isinstance(rows, bool):
            return self.pixels([rows])[0]
        if not isinstance(rows, slice):
            rows = chosen_rows("rows", rows, len(self))
        images = self.images[rows]
        return images.float() / 255 if images.dtype == torch.uint8 else images

    def subset(self, indices: Any) -> ImageSet:
        """Return the images at `indices`, in that order.

        Parameters
        ----------
        indices : whole numbers [n], a slice, or a mask [N]
            Images to keep; negative numbers count from the end.

        Raises
        ------
        InputError
            If a mask has not one entry for each image, or a row does not exist.
        """
        rows = chosen_rows("indices", indices, len(self))
        extras = {key: value[rows] for key, value in self.extras.items()}
        return replace(self, images=self.images[rows], labels=self.labels[rows], extras=extras)

    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: Seed = None,
    ) -> DataLoader[Batch]:
        """Return batches (images [b, C, H, W] float32 in [0, 1], labels [b]).

        A batch is cut out of the tensors by one indexing operation; nothing is collated
        image by image. The last batch may be smaller. With `shuffle` the order is drawn anew
        each pass, from `seed` (or its seed) unless it is None.

        Parameters
        ----------
        batch_size : int
            Number of images of a batch, at least 1; the last batch may be smaller.
        shuffle : bool
            True draws a new order in each pass. False, the default, keeps the order of the rows.
        seed : torch.Generator, int or None
            Generator or seed of the orders. None, the default: a new one each time.

        Raises
        ------
        InputError
            If `batch_size` is below 1.
        """
        return row_loader(len(self), self._batch, batch_size, shuffle=shuffle, seed=seed)

    def _batch(self, rows: list[int]) -> Batch:
        index = torch.tensor(rows)
        return self.pixels(index), self.labels[index]
