"""Images and texts that belong together, many to many, and the batches of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from laplace_metric._utils.display import ItemBar
from laplace_metric._utils.randomness import at_least_float32
from laplace_metric._utils.validation import as_tensor, check_dense, check_floating
from laplace_metric.errors import DtypeError, InputError, LabelError, NonFiniteError
from laplace_metric.models._calling import Inputs, call_model, device_of, evaluation_mode, to_device


def count_inputs(name: str, inputs: Inputs) -> int:
    """N of inputs: the rows of an array, the length of a list, those of every part of a mapping.

    Raises
    ------
    InputError
        If they have none.

    Examples
    --------
    >>> count_inputs("texts", ["a", "b"])
    2
    """
    if isinstance(inputs, Mapping):
        lengths = {key: count_inputs(f"{name}[{key!r}]", value) for key, value in inputs.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"{name} has parts of several lengths: {lengths}.")
        return next(iter(lengths.values()))
    if isinstance(inputs, Tensor):
        check_dense(name, inputs)
    sized = isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim > 0
    if not sized and not isinstance(inputs, (list, tuple)):
        raise InputError(f"{name} is a {type(inputs).__name__}: pass an array or a list of inputs.")
    if not len(inputs):
        raise InputError(f"{name} is empty: pass at least one.")
    return len(inputs)


def take_inputs(inputs: Inputs, rows: Int[Tensor, " B"]) -> Inputs:
    """Some rows of inputs, of the same kind.

    Examples
    --------
    >>> take_inputs(["a", "b", "c"], torch.tensor([2, 0]))
    ['c', 'a']
    """
    if isinstance(inputs, Mapping):
        return {key: take_inputs(value, rows) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [inputs[row] for row in rows.tolist()]
    return inputs[rows.numpy() if isinstance(inputs, np.ndarray) else rows]


class PairBatch(NamedTuple):
    """Which of B images and C texts of a batch belong together.

    Parameters
    ----------
    match : Tensor [B, C]
        All of it, not only pairs that were drawn.
    pairs : Tensor [P, 2]
        Rows of the batch, of image and of text, that were drawn.
    n_images : Tensor [C]
        How many images of the whole data set each text names.
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
        As the encoders take them: an array [N, ...], a list, or a mapping of these. Each text once.
    pairs : whole numbers [P, 2]
        Rows (image, text); every image and every text at least once.

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

    images: Inputs
    texts: Inputs
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
    def of(cls, images: Inputs, captions: Sequence[str | Sequence[str]]) -> ImageTextPairs:
        """From the texts of each image: a string or several; equal strings are one text.

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
        """Which of some images and texts belong together."""
        keys = images[:, None] * self.n_texts + texts
        place = torch.searchsorted(self._keys, keys).clamp_max(len(self._keys) - 1)
        return self._keys[place] == keys

    @cached_property
    def images_per_text(self) -> Int[Tensor, " M"]:
        """Number of images that each text names [M]."""
        return self.pairs[:, 1].bincount(minlength=self.n_texts)

    def texts_of_images(self) -> list[list[int]]:
        """Rows of the texts of each image: ``matches`` for an index of texts.

        Examples
        --------
        >>> ImageTextPairs.of(["a.png", "b.png"], [["red", "car"], ["red"]]).texts_of_images()
        [[0, 1], [0]]
        """
        return _partners(self.pairs[:, 0], self.pairs[:, 1], self.n_images)

    def images_of_texts(self) -> list[list[int]]:
        """Rows of the images of each text: ``matches`` for an index of images."""
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
    batch_size : int
        Most pairs of a batch, at least 2.
    generator : torch.Generator
        Of the order.

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


# Features of images or texts: what an encoder returns, checked, in blocks.


Encoder = Callable[[Any], Tensor]
"""Inputs of B images or texts -> features [B, F], or [B, 2, F] of [CLS] and [UNC] tokens.

An ``nn.Module`` or any function.
"""
SIDES = ("images", "texts")
BLOCK = 256
"""Inputs that a frozen encoder gets at once."""


def encode(encoder: Encoder, inputs: Inputs, name: str, *, grad: bool = False) -> Tensor:
    """Features [B, F] or [B, 2, F] of one batch, float32 or float64 and finite.

    Raises
    ------
    InputError
        For anything else; ``name`` says of what.
    NonFiniteError
        For NaN and infinity.
    """
    if isinstance(encoder, nn.Module):
        moved = to_device(inputs, device_of(encoder))
        with nullcontext() if grad else evaluation_mode(encoder):
            features = call_model(encoder, moved)
    else:
        with torch.no_grad():
            features = encoder(inputs)
    n = count_inputs(name, inputs)
    two = isinstance(features, Tensor) and features.ndim == 3 and features.shape[1] == 2
    check_floating(f"features of {name}", features, "[B, 2, F]" if two else "[B, F]")
    if len(features) != n:
        raise InputError(f"the encoder gave {len(features)} features for {n} {name}.")
    values = at_least_float32(features)
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
        raise NonFiniteError(f"features of {name} hold NaN or infinity, first in row {row}.")
    return values if grad else values.detach()


def encoded_blocks(
    encoder: Encoder, inputs: Inputs, name: str, *, progress: bool
) -> Iterator[Float[Tensor, "B ..."]]:
    """Features of everything, ``BLOCK`` inputs at once, with a progress bar."""
    n = count_inputs(name, inputs)
    with ItemBar(f"Encoding {name}", n, shown=progress and n > BLOCK) as bar:
        for rows in torch.arange(n).split(BLOCK):
            features = encode(encoder, take_inputs(inputs, rows), name)
            yield features
            bar.advance(len(features))


def encode_all(
    encoder: Encoder, inputs: Inputs, name: str, *, progress: bool
) -> Float[Tensor, "N ..."]:
    """Features [N, F] or [N, 2, F] of everything."""
    return torch.cat(list(encoded_blocks(encoder, inputs, name, progress=progress)))


def check_towers(images: Tensor, texts: Tensor, tokens: str) -> None:
    """Check that both towers compute in one type, with the tokens that are asked for.

    Raises
    ------
    DtypeError
        For two types.
    InputError
        For tokens that are missing or not asked for.
    """
    for name, features in (("images", images), ("texts", texts)):
        if (features.ndim == 3) is not (tokens == "uncertainty"):
            has = "[CLS] and [UNC]" if features.ndim == 3 else "one vector"
            wanted = "head" if tokens == "uncertainty" else "uncertainty"
            raise InputError(
                f"tokens={tokens!r}, and the encoder of {name} gives {has} an input, features "
                f"{list(features.shape)}: pass tokens={wanted!r}, or another encoder."
            )
    if images.dtype != texts.dtype:
        raise DtypeError(
            f"features of images are {images.dtype}, those of texts {texts.dtype}: convert one "
            "encoder, with .float() or .double()."
        )
