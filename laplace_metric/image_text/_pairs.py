"""Images and texts that belong together, many to many, and the batches of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from laplace_metric._utils.validation import as_tensor
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._by_row import count_inputs


class PairBatch(NamedTuple):
    """The B images and C texts of a batch, and which belong together.

    Parameters
    ----------
    match : Tensor [B, C]
        True for every pair that belongs together, not only for those that were drawn.
    pairs : Tensor [P, 2]
        Rows of the batch, of image and of text, that were drawn.
    n_images : Tensor [C]
        Number of images of the whole data set that each text names.
    """

    match: Bool[Tensor, "B C"]
    pairs: Int[Tensor, "P two"]
    n_images: Int[Tensor, " C"]


@dataclass(frozen=True)
class ImageTextPairs:
    """N images, M texts, and which belong together.

    Parameters
    ----------
    images, texts : inputs
        Inputs as the encoders take them: an array [N, ...], a list, or a mapping of these. Each
        text occurs once.
    pairs : whole numbers [P, 2]
        Rows (image, text) that belong together; every image and every text occurs at least once.

    Raises
    ------
    InputError, LabelError
        For rows that do not exist, and images or texts without a partner, which it names.

    Examples
    --------
    >>> pairs = ImageTextPairs.of(["a.png", "b.png"], [["red", "car"], ["red"]])
    >>> pairs.texts, pairs.pairs.tolist()
    (['red', 'car'], [[0, 0], [0, 1], [1, 0]])
    """

    images: ModelInput
    texts: ModelInput
    pairs: Int[Tensor, "P two"]

    def __post_init__(self) -> None:
        pairs = as_tensor("pairs", self.pairs)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
            raise InputError(
                f"pairs has shape {tuple(pairs.shape)} and dtype {pairs.dtype}: pass whole "
                "numbers [P, 2], rows (image, text)."
            )
        object.__setattr__(self, "pairs", pairs.long().unique(dim=0).cpu())
        for side, (name, n) in enumerate((("images", self.n_images), ("texts", self.n_texts))):
            _check_rows(name, self.pairs[:, side], n)

    @classmethod
    def of(cls, images: ModelInput, captions: Sequence[str | Sequence[str]]) -> ImageTextPairs:
        """Build from the texts of each image, a string or several; equal strings are one text.

        Parameters
        ----------
        images : inputs of N images
            Images as the encoder takes them.
        captions : sequence of N texts or lists of texts
            Texts of each image; equal strings are one text.

        Raises
        ------
        LabelError
            For another number of captions than of images, and images or texts without any.
        InputError
            For empty captions and what is no text.
        """
        n = count_inputs("images", images)
        if isinstance(captions, str) or not isinstance(captions, Sequence) or len(captions) != n:
            what = len(captions) if hasattr(captions, "__len__") else type(captions).__name__
            raise LabelError(f"captions has {what}, and there are {n} images: pass one for each.")
        place: dict[str, int] = {}
        rows = []
        for image, texts in enumerate(captions):
            for text in [texts] if isinstance(texts, str) else texts:
                if not isinstance(text, str) or not text.strip():
                    raise InputError(f"captions[{image}] holds {text!r:.40}: pass texts.")
                rows.append((image, place.setdefault(text, len(place))))
        if not rows:
            raise LabelError("captions are all empty: pass at least one text an image.")
        return cls(images, list(place), torch.tensor(rows))

    @cached_property
    def n_images(self) -> int:
        """N."""
        return count_inputs("images", self.images)

    @cached_property
    def n_texts(self) -> int:
        """M."""
        return count_inputs("texts", self.texts)

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def _keys(self) -> Tensor:
        """``image M + text`` of each pair, ascending."""
        return (self.pairs[:, 0] * self.n_texts + self.pairs[:, 1]).sort().values

    def match(self, images: Int[Tensor, " B"], texts: Int[Tensor, " C"]) -> Bool[Tensor, "B C"]:
        """Return True for each of some images and texts that belong together.

        Parameters
        ----------
        images : Tensor [B]
            Rows of images.
        texts : Tensor [C]
            Rows of texts.
        """
        keys = images[:, None] * self.n_texts + texts
        place = torch.searchsorted(self._keys, keys).clamp_max(len(self._keys) - 1)
        return self._keys[place] == keys

    @cached_property
    def images_per_text(self) -> Int[Tensor, " M"]:
        """Number of images that each text names [M]."""
        return self.pairs[:, 1].bincount(minlength=self.n_texts)

    def texts_of_images(self) -> list[list[int]]:
        """Return rows of the texts of each image: ``matches`` for an index of texts.

        Examples
        --------
        >>> ImageTextPairs.of(["a.png", "b.png"], [["red", "car"], ["red"]]).texts_of_images()
        [[0, 1], [0]]
        """
        return _partners(self.pairs[:, 0], self.pairs[:, 1], self.n_images)

    def images_of_texts(self) -> list[list[int]]:
        """Return rows of the images of each text: ``matches`` for an index of images."""
        return _partners(self.pairs[:, 1], self.pairs[:, 0], self.n_texts)


def _partners(ours: Tensor, theirs: Tensor, n: int) -> list[list[int]]:
    order = ours.argsort(stable=True)
    sizes = ours.bincount(minlength=n).tolist()
    return [rows.tolist() for rows in theirs[order].split(sizes)]


def _check_rows(name: str, rows: Tensor, n: int) -> None:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
        raise InputError(f"pairs name {name} {int(rows.min())} to {int(rows.max())} of {n}.")
    alone = (rows.bincount(minlength=n) == 0).nonzero().flatten()
    if len(alone):
        raise LabelError(
            f"{len(alone)} of {n} {name} have no partner, the first is row {int(alone[0])}: leave "
            "them out, or add their pairs."
        )


@dataclass
class PairBatches:
    """All pairs once an epoch, in a random order, in batches of nearly equal size.

    Parameters
    ----------
    pairs : ImageTextPairs
        Pairs of the data set.
    batch_size : int
        Most pairs of a batch, at least 2.
    generator : torch.Generator
        Generator of the order.

    Raises
    ------
    InputError
        For less than 2 pairs: a pair alone has nothing to differ from.
    """

    pairs: ImageTextPairs
    batch_size: int
    generator: torch.Generator

    def __post_init__(self) -> None:
        if len(self.pairs) < 2:
            raise InputError("pairs holds one pair: pass at least two.")

    def __len__(self) -> int:
        return min(-(-len(self.pairs) // self.batch_size), len(self.pairs) // 2)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        order = torch.randperm(len(self.pairs), generator=self.generator)
        for numbers in order.tensor_split(len(self)):
            yield self.pairs.pairs[numbers], numbers
