"""A client's query as the model's input, read as ``laplace-metric search`` reads it."""

from __future__ import annotations

import io
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._loading import read_options_of
from laplace_metric.cli.serve._limits import TOO_LARGE, WRONG_TYPE, Limits, RequestRefused
from laplace_metric.cli.serve._question import QUERIES, Question
from laplace_metric.cli.sources import ARRAYS, IMAGES, Pixels, ReadOptions
from laplace_metric.errors import InputError
from laplace_metric.models import Inputs

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Those of a folder of images; no other decoder sees what a client sends."""


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
    """

    kind: str
    pixels: Pixels
    most_pixels: int
    dtype: torch.dtype

    @classmethod
    def of(cls, gallery: LoadedIndex, options: Namespace, limits: Limits) -> QueryReader:
        """As the items of this index were read, unless options say otherwise.

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
        return cls(recipe.kind, pixels, limits.of_an_image(scaled=scaled), dtype)

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
        return self.pixels.tensor(decoded(content, self.pixels, self.most_pixels))


def decoded(content: bytes, pixels: Pixels, most: int) -> Image.Image:
    """An image file as grey or RGB, at its own size.

    Raises
    ------
    RequestRefused
        If it is none, is damaged, or has more than ``most`` pixels, which is seen before they are
        decoded.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            _check_size(file.size, most)
            return pixels.converted(file)
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


def _check_size(size: tuple[int, int], most: int) -> None:
    if size[0] * size[1] > most:
        raise RequestRefused(
            f"the image is {size[0]} x {size[1]}, which is {size[0] * size[1]:,} pixels: at most "
            f"{most:,} are read. Scale it down, or start the server with --max-pixels.",
            TOO_LARGE,
        )
