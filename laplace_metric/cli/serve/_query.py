"""One query of a client: validated, then read as ``laplace-metric search`` reads it."""

from __future__ import annotations

import io
import json
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
from PIL import Image, UnidentifiedImageError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from torch import Tensor

from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._loading import read_options_of
from laplace_metric.cli.serve._guard import TOO_LARGE, WRONG_TYPE, Limits, RequestRefused
from laplace_metric.cli.sources import ARRAYS, IMAGES, TEXTS, Pixels, ReadOptions
from laplace_metric.datasets._pixels import TRANSPARENT
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


def json_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises
    ------
    RequestRefused
        For anything else, for NaN and Infinity, and for a field that is given twice.

    Examples
    --------
    >>> json_fields(b'{"vector": [1, 2], "k": 3}')
    {'vector': [1, 2], 'k': 3}
    """
    try:
        fields = json.loads(body, parse_constant=_not_a_number, object_pairs_hook=_fields_once)
    except RequestRefused:
        raise
    except (ValueError, RecursionError) as error:  # also an integer of more than 4,300 digits
        raise RequestRefused(f"the body is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RequestRefused('the body is JSON, but not an object: send {"text": ...} or the like.')
    return fields


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestRefused("the body names a field twice: give each once.")
    return fields


def _not_a_number(name: str) -> NoReturn:
    raise RequestRefused(f"the body holds {name}: every number must be finite.")


def _vector(value: Any) -> Any:
    if isinstance(value, str):  # of a form
        value = json_fields(b'{"vector": ' + value.encode(errors="replace") + b"}")["vector"]
    for place, number in enumerate(value if isinstance(value, list) else ()):
        if type(number) not in (int, float) or not -LARGEST < number < LARGEST:
            raise ValueError(f"vector[{place}]={number!r:.40} is not a finite number")
    return value


def _whole(value: Any) -> Any:
    """Return a number that a form or an address gave as a text."""
    return int(value) if isinstance(value, str) else value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


Share = Annotated[float, BeforeValidator(_real), Field(gt=0, lt=1)]


class Question(BaseModel):
    """One query of a client, how many neighbours, and when to answer.

    Numbers may be texts, as they are in forms and addresses; an empty field counts as left out.

    Examples
    --------
    >>> Question.of({"text": "a red bird", "k": "3"}).k
    3
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    image: bytes = Field(b"", description="An image file.")
    text: str = Field("", max_length=TEXT, pattern=r"\S", description="A text.")
    vector: Annotated[list[float], BeforeValidator(_vector)] = Field(
        [], description="[x1, ..., xD]"
    )
    k: Annotated[int, BeforeValidator(_whole)] = Field(5, ge=1, le=1000, description="Neighbours.")
    threshold: Annotated[float, BeforeValidator(_real), Field(ge=0, le=1)] | None = Field(
        None, description="Match probability from which to answer."
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
        empty = (None, "", b"")
        known = cls.model_fields
        given = {x: value for x, value in fields.items() if x not in known or value not in empty}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise RequestRefused(_reason(error)) from error

    @property
    def kind(self) -> str:
        """Kind of index that takes the query: "images", "texts" or "arrays"."""
        return KINDS[self._given()[0]]

    @model_validator(mode="after")
    def _one_of_each(self) -> Question:
        given = self._given()
        if len(given) != 1:
            raise ValueError(
                f"{len(given)} queries ({', '.join(given) or 'none'}): give one of "
                f"{', '.join(KINDS)}"
            )
        if self.threshold is not None and self.precision is not None:
            raise ValueError("threshold and precision: give one of them")
        return self

    def _given(self) -> list[str]:
        return [name for name in KINDS if getattr(self, name)]


REMEDIES = {
    "extra_forbidden": f"the field is not known: give {', '.join(Question.model_fields)}",
    "bytes_type": "send an image as the body (Content-Type: image/png or the like), or as a file "
    "of a form",
    "string_pattern_mismatch": "the text is blank: give some words",
    "string_unicode": "half of a surrogate pair is not a character: give whole characters",
}
"""Messages in the place of pydantic's."""


def _reason(error: ValidationError) -> str:
    """Return the first error: the field, its value and what to do."""
    first = error.errors(include_url=False, include_context=False)[0]
    words = REMEDIES.get(first["type"], first["msg"].removeprefix("Value error, ").rstrip("."))
    if not first["loc"] or words.startswith("vector["):
        return f"{words}."
    return f"{first['loc'][0]!s:.60}={first['input']!r:.40}: {words}."


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
        Kind of query that the index takes.
    pixels : Pixels
        How images become tensors.
    most_pixels : int
    dtype : torch.dtype
        Type of vectors.
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
                "the posterior was saved in Python, which does not store whether its inputs are "
                "images or texts. Give --posterior of laplace-metric fit, or index the items with "
                "laplace-metric index."
            )
        read = ReadOptions(**{**recipe.read_options, **read_options_of(options)})
        transform = None if loaded is None else loaded.transform
        scaled = read.size is not None or transform is not None
        model = gallery.posterior.embedder.model
        return cls(
            recipe.kind,
            Pixels(Path(), read.size, read.channels or 3, transform),
            limits.pixels or (32_000_000 if scaled else 1_000_000),
            gallery.index.items.encoded.mean.dtype,
            model.size if isinstance(model, Precomputed) else None,
        )

    def most_bytes(self, content_type: str, limits: Limits) -> int:
        """Bytes that a body of this type may have.

        JSON is parsed in one piece while all other threads wait, so its size follows from what the
        longest query needs.
        """
        if self.kind == IMAGES and content_type not in ("application/json", "text/plain"):
            return limits.body
        width = 0 if self.kind != ARRAYS else self.width or UNKNOWN_WIDTH
        return min(limits.body, max(NUMBER * width, CHARACTER * TEXT) + REST)

    def read(self, question: Question) -> Inputs:
        """[1, C, H, W], one text, or [1, D].

        Raises
        ------
        RequestRefused
            For a query of another kind or width, or an image that is too large or unreadable.
        """
        if question.kind != self.kind:
            name = {kind: field for field, kind in KINDS.items()}[self.kind]
            raise RequestRefused(
                f"this index holds {self.kind}, the query is of {question.kind}: send {name!r}.",
                WRONG_TYPE,
            )
        if self.kind == TEXTS:
            return [question.text]
        if self.kind == IMAGES:
            with self.picture(question.image) as picture:
                tensor: Tensor = self.pixels.tensor(picture)
            return tensor[None]
        if self.width not in (None, len(question.vector)):
            raise RequestRefused(
                f"vector has {len(question.vector):,} numbers, and the items of this index have "
                f"{self.width:,}: give as many, from the same encoder."
            )
        return torch.tensor([question.vector], dtype=self.dtype)

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
        with self.gate.holding(needed(file, self.most_pixels)):
            with reading():
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
def reading() -> Iterator[None]:
    """Turn what decoders raise into refusals."""
    try:
        yield
    except Exception as error:  # decoders raise whatever they meet
        why = "its content is none of them" if isinstance(error, UnidentifiedImageError) else error
        status = TOO_LARGE if isinstance(error, Image.DecompressionBombError) else WRONG_TYPE
        raise RequestRefused(
            f"the image cannot be read as {', '.join(FORMATS)}: {why}.", status
        ) from error
