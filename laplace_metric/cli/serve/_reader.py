"""A client's query as the model's input, read as ``laplace-metric search`` reads it."""

from __future__ import annotations

import io
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._loading import read_options_of
from laplace_metric.cli.serve._guard import TOO_LARGE, WRONG_TYPE, Limits, RequestRefused
from laplace_metric.cli.serve._question import QUERIES, Question
from laplace_metric.cli.sources import ARRAYS, IMAGES, Pixels, ReadOptions
from laplace_metric.datasets._pixels import TRANSPARENT
from laplace_metric.errors import InputError
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import Inputs

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Those of a folder of images; no other decoder sees what a client sends."""


NUMBER, CHARACTER, REST = 32, 12, 2**14
"""Most bytes of a number of JSON, of an escaped character, and of all other fields."""
UNKNOWN_WIDTH = 2**16
"""Numbers that a vector may have where only the model knows how many it takes."""
PIXEL = 8
"""Bytes of an RGB pixel while it is decoded: Pillow's four, and a converted copy."""
ON_WHITE = 20
"""Bytes of a pixel that is laid on white: the image, as RGBA, white, both, and a converted copy."""


class MemoryGate:
    """Lets threads in while what they need, together, is at most ``most`` bytes.

    Parameters
    ----------
    most : int

    Examples
    --------
    >>> gate = MemoryGate(10)
    >>> with gate.holding(7):
    ...     gate.free
    3
    """

    def __init__(self, most: int) -> None:
        self.most = self.free = most
        self._changed = threading.Condition()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Wait until ``size`` bytes are free, at most ``most``, and hold them."""
        size = min(size, self.most)
        with self._changed:
            self._changed.wait_for(lambda: self.free >= size)
            self.free -= size
        try:
            yield
        finally:
            with self._changed:
                self.free += size
                self._changed.notify_all()


@dataclass(frozen=True)
class QueryReader:
    """Question -> the input of a model, a batch of one.

    Parameters
    ----------
    kind : "images" | "texts" | "arrays"
        That the index takes.
    pixels : Pixels
        How images become tensors.
    most_pixels : int
    dtype : torch.dtype
        Of vectors.
    width : int or None
        Numbers of a vector; None where the model alone knows.
    """

    kind: str
    pixels: Pixels
    most_pixels: int
    dtype: torch.dtype
    width: int | None = None
    gate: MemoryGate = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate", MemoryGate(PIXEL * self.most_pixels))

    @classmethod
    def of(cls, gallery: LoadedIndex, options: Namespace, limits: Limits) -> QueryReader:
        """Build a reader that reads like the items of this index, unless options say otherwise.

        Raises
        ------
        InputError
            If it is not known what they are.
        """
        recipe, loaded = gallery.posterior.recipe, gallery.posterior.loaded
        if recipe.kind is None:
            raise InputError(
                "the posterior was saved in Python, which does not keep whether its inputs are "
                "images or texts. Give --posterior of laplace-metric fit, or index the items with "
                "laplace-metric index."
            )
        read = ReadOptions(**{**recipe.read_options, **read_options_of(options)})
        transform = None if loaded is None else loaded.transform
        pixels = Pixels(Path(), read.size, read.channels or 3, transform)
        scaled = read.size is not None or transform is not None
        dtype = gallery.index.items.encoded.mean.dtype
        model = gallery.posterior.embedder.model
        width = model.size if isinstance(model, Precomputed) else None
        return cls(recipe.kind, pixels, limits.of_an_image(scaled=scaled), dtype, width)

    def most_bytes(self, content_type: str, limits: Limits) -> int:
        """Bytes that a body of this type may have.

        JSON is parsed in one piece while all other threads wait, so its size follows from what the
        longest query needs.
        """
        if self.kind == IMAGES and content_type not in ("application/json", "text/plain"):
            return limits.body
        width = 0 if self.kind != ARRAYS else self.width or UNKNOWN_WIDTH
        return min(limits.body, max(NUMBER * width, CHARACTER * limits.text) + REST)

    def read(self, question: Question) -> Inputs:
        """[1, C, H, W], one text, or [1, D].

        Raises
        ------
        RequestRefused
            For a query of another kind, what is no image, or one that is too large.
        """
        if question.kind != self.kind:
            name = {kind: field for field, kind in QUERIES.items()}[self.kind]
            raise RequestRefused(
                f"this index holds {self.kind}, the query is of {question.kind}: send {name!r}.",
                WRONG_TYPE,
            )
        query: Any = question.query
        if self.kind == IMAGES:
            return self._image(query)[None]
        return torch.tensor([query], dtype=self.dtype) if self.kind == ARRAYS else [query]

    def _image(self, content: bytes) -> Tensor:
        with self.picture(content) as picture:
            return self.pixels.tensor(picture)

    @contextmanager
    def picture(self, content: bytes) -> Iterator[Image.Image]:
        """An image file as grey or RGB, at its own size; its memory is counted until the end.

        Raises
        ------
        RequestRefused
            If it is none, is damaged, or too large, which is seen before it is decoded.
        """
        with reading(self.most_pixels):
            file = Image.open(io.BytesIO(content), formats=FORMATS)
        with self.gate.holding(needed(file, self.most_pixels)):
            with reading(self.most_pixels):
                picture = self.pixels.converted(file)
            yield picture


def needed(file: Image.Image, most: int) -> int:
    """Bytes that decoding takes.

    Raises
    ------
    RequestRefused
        If they are more than those of ``most`` RGB pixels.
    """
    transparent = file.mode in TRANSPARENT or "transparency" in file.info
    pixel, pixels = ON_WHITE if transparent else PIXEL, file.size[0] * file.size[1]
    most = most * PIXEL // pixel
    if pixels > most:
        raise RequestRefused(
            f"the image is {file.size[0]} x {file.size[1]}, which is {pixels:,} pixels: at most "
            f"{most:,} are read{' where they are transparent' if transparent else ''}. Scale it "
            "down, or start the server with --max-pixels.",
            TOO_LARGE,
        )
    return pixel * pixels


@contextmanager
def reading(most: int) -> Iterator[None]:
    """Turn what decoders raise into refusals."""
    try:
        yield
    except RequestRefused:
        raise
    except Image.DecompressionBombError as error:
        raise RequestRefused(
            f"the image has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels: at most "
            f"{most:,} are read.",
            TOO_LARGE,
        ) from error
    except Exception as error:  # decoders raise whatever they meet
        why = "it is none of them" if isinstance(error, UnidentifiedImageError) else error
        raise RequestRefused(
            f"the image cannot be read as {', '.join(FORMATS)}: {why}.", WRONG_TYPE
        ) from error
