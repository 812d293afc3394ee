"""One query of a client: validated, then read as ``laplace-metric search`` reads it."""

from __future__ import annotations

import io
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from PIL import Image, UnidentifiedImageError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json
from torch import Tensor

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._loading import read_options_of
from laplace_metric.cli._sources import ARRAYS, IMAGES, TEXTS, ReadOptions
from laplace_metric.cli.serve._guard import Limits, RequestRefused
from laplace_metric.datasets._pixels import TRANSPARENT, Pixels
from laplace_metric.errors import InputError
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import Inputs

KINDS = {"image": IMAGES, "text": TEXTS, "vector": ARRAYS}
"""The fields that hold a query, and the kind of index that takes each."""
ALPHA = 0.05
TEXT = 20_000
"""Characters of a text."""
LARGEST = 1e300
"""Numbers of a vector are smaller: their squares are never read as float32 infinity."""
REMEDIES = {
    "extra_forbidden": "the field is not known: see /docs",
    "string_pattern_mismatch": "the text is blank: give some words",
}
"""Messages in the place of pydantic's."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Image formats that are read; no other decoder sees what a client sends."""
NUMBER, CHARACTER, REST = 32, 12, 2**14
"""Most bytes of a number of JSON, of an escaped character, and of all other fields."""
UNKNOWN_WIDTH = 2**16
"""Numbers that a vector may have where only the model knows how many it takes."""
PIXEL = 8
"""Bytes of an RGB pixel while it is decoded: Pillow's four, and a converted copy."""
ON_WHITE = 20
"""Bytes of a pixel that is laid on white: the image, as RGBA, white, both, and a converted copy."""


def _parsed(value: Any) -> Any:
    """Return the numbers that a form or an address gave as a text."""
    if not isinstance(value, str):
        return value
    return from_json(value.encode(errors="replace"), allow_inf_nan=False)


Share = Annotated[float, Field(gt=0, lt=1)]
Vector = Annotated[
    list[Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]], FailFast(), BeforeValidator(_parsed)
]


class Question(BaseModel):
    """One query of a client, how many neighbours, and when to answer.

    Numbers may be texts, as they are in forms and addresses; an empty field counts as left out.

    Examples
    --------
    >>> Question.of({"text": "a red bird", "k": "3"}).k
    3
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: bytes = Field(b"", description="An image file.")
    text: str = Field("", max_length=TEXT, pattern=r"\S", description="A text.")
    vector: Vector = Field([], description="[x1, ..., xD]")
    k: int = Field(5, ge=1, le=1000, description="Neighbours.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Probability of an answer from which to give it."
    )
    precision: Share | None = Field(
        None, description="In its place: guaranteed share of the answers that are right."
    )
    alpha: Share = Field(
        ALPHA, description="Share of queries with a match that may be called unknown."
    )

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Question:
        """Build from the fields of a JSON object, of a form or of an address.

        Raises
        ------
        RequestRefused
            For an unknown field, no query or two, or a number out of range.
        """
        given = {name: x for name, x in fields.items() if x is not None and x not in ("", b"")}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
        name, *place = first["loc"] or ("",)
        words = REMEDIES.get(first["type"], first["msg"].removeprefix("Value error, "))
        if place:
            name, words = f"{name}[{place[0]}]", "give finite numbers"
        told = f"{name!s:.60}={first['input']!r:.40}: {words}" if name else words
        raise RequestRefused(f"{told}.")

    @property
    def field(self) -> str:
        """Name of the field that holds the query."""
        return next(name for name in KINDS if getattr(self, name))

    @model_validator(mode="after")
    def _one_of_each(self) -> Question:
        given = [name for name in KINDS if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"{len(given)} queries ({', '.join(given) or 'none'}): give one of "
                f"{', '.join(KINDS)}"
            )
        if self.threshold is not None and self.precision is not None:
            raise ValueError("threshold and precision: give one of them")
        return self


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


class QueryReader:
    """Question -> the input of a model, a batch of one, read like the items of the index.

    Parameters
    ----------
    gallery : LoadedIndex
    options : Namespace
        Of the command line; how to read images, if not like the items.
    limits : Limits

    Raises
    ------
    InputError
        If it is not known what the items are.
    """

    def __init__(self, gallery: LoadedIndex, options: Namespace, limits: Limits) -> None:
        recipe, loaded = gallery.posterior.recipe, gallery.posterior.loaded
        if recipe.kind is None:
            raise InputError(
                "the posterior was saved in Python, which does not store whether its inputs are "
                "images or texts. Give --posterior of laplace-metric fit, or index the items with "
                "laplace-metric index."
            )
        read = ReadOptions(**{**recipe.read_options, **read_options_of(options)})
        transform = None if loaded is None else loaded.transform
        scaled = read.size is not None or transform is not None
        model = gallery.posterior.embedder.model
        self.kind = recipe.kind
        self.most_pixels = limits.pixels or (32_000_000 if scaled else 1_000_000)
        self._pixels = Pixels(Path(), read.size, read.channels or 3, transform)
        self._dtype = gallery.index.items.encoded.mean.dtype
        self._width = model.size if isinstance(model, Precomputed) else None  # else unknown
        self._most_bytes = limits.body
        self._gate = MemoryGate(PIXEL * self.most_pixels)

    def most_bytes(self, content_type: str) -> int:
        """Bytes that a body of this type may have.

        JSON is parsed in one piece while all else waits, so its size follows from what the longest
        query needs.
        """
        if self.kind == IMAGES and content_type not in ("application/json", "text/plain"):
            return self._most_bytes
        width = 0 if self.kind != ARRAYS else self._width or UNKNOWN_WIDTH
        return min(self._most_bytes, max(NUMBER * width, CHARACTER * TEXT) + REST)

    def read(self, question: Question) -> Inputs:
        """[1, C, H, W], one text, or [1, D].

        Raises
        ------
        RequestRefused
            For a query of another kind or width, or an image that is too large or unreadable.
        """
        if KINDS[question.field] != self.kind:
            wanted = next(name for name, kind in KINDS.items() if kind == self.kind)
            raise RequestRefused(
                f"{question.field}: this index holds {self.kind}, send {wanted!r}.", 415
            )
        if self.kind == TEXTS:
            return [question.text]
        if self.kind == IMAGES:
            with self.picture(question.image) as picture:
                tensor: Tensor = self._pixels.tensor(picture)
            return tensor[None]
        if self._width not in (None, len(question.vector)):
            raise RequestRefused(
                f"vector has {len(question.vector):,} numbers, and the items of this index have "
                f"{self._width:,}: give as many, from the same encoder."
            )
        return torch.tensor([question.vector], dtype=self._dtype)

    @contextmanager
    def picture(self, content: bytes) -> Iterator[Image.Image]:
        """An image file as grey or RGB, at its own size; its memory is counted until the end.

        Raises
        ------
        RequestRefused
            If it is not an image, is damaged, or too large, which is seen before it is decoded.
        """
        with reading():
            file = Image.open(io.BytesIO(content), formats=FORMATS)
        with self._gate.holding(self._needed(file)):
            with reading():
                picture = self._pixels.converted(file)
            yield picture

    def _needed(self, file: Image.Image) -> int:
        """Bytes that decoding takes, at most those of ``most_pixels`` RGB pixels."""
        transparent = file.mode in TRANSPARENT or "transparency" in file.info
        pixel, pixels = ON_WHITE if transparent else PIXEL, file.size[0] * file.size[1]
        most = self.most_pixels * PIXEL // pixel
        if pixels > most:
            raise RequestRefused(
                f"the image is {file.size[0]} x {file.size[1]}, which is {pixels:,} pixels: at "
                f"most {most:,} are read{' where they are transparent' if transparent else ''}. "
                "Scale it down, or start the server with --max-pixels.",
                413,
            )
        return pixel * pixels


@contextmanager
def reading() -> Iterator[None]:
    """Turn what decoders raise into refusals."""
    try:
        yield
    except Exception as error:  # decoders raise whatever they meet
        why = "its content is none of them" if isinstance(error, UnidentifiedImageError) else error
        status = 413 if isinstance(error, Image.DecompressionBombError) else 415
        raise RequestRefused(
            f"the image cannot be read as {', '.join(FORMATS)}: {why}.", status
        ) from error
