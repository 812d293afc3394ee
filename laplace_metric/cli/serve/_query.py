"""One query of a client: validated, then read as ``laplace-metric search`` reads it.

Responses: the numbers of ``Index.search`` for one query, and a decision in words.
"""

from __future__ import annotations

import io
import math
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    SkipValidation,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json
from torch import Tensor

from laplace_metric._utils.display import as_percent
from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli._loading import read_options_of
from laplace_metric.cli._output import rows_of
from laplace_metric.cli._sources import ARRAYS, IMAGES, TEXTS, ReadOptions
from laplace_metric.cli.serve._guard import Limits, RequestRefused
from laplace_metric.datasets._image_set import TRANSPARENT, Pixels
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import Inputs
from laplace_metric.search import SearchResult

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


# Responses: the numbers of ``Index.search`` for one query, and a decision in words.

Name = SkipValidation[str | int]
"""A name, which may hold bytes that are not UTF-8 (``_utils.names``)."""
ALWAYS = ConfigDict(json_schema_serialization_defaults_required=True)
"""Of answers whose fields are all there, None where a number is not known."""


class NeighbourAnswer(BaseModel):
    """One item of the gallery, as in ``SearchResult``.

    Parameters
    ----------
    rank, row : int
        Rank from 1, the nearest; row of the gallery.
    id : str or int
    label : str, int or None
    distance, distance_sd : float
        Distance of the mean embeddings; its standard deviation, None where it is not finite.
    match_probability : float or None
        None without a calibration.
    text : str or None
        The item itself if it is a text and its table is still there, up to 1,000 characters.
    """

    model_config = ALWAYS

    rank: int
    row: int
    id: Name
    label: Name | None = None
    distance: float
    distance_sd: float | None
    match_probability: float | None = None
    text: SkipValidation[str | None]


class SearchAnswer(BaseModel):
    """Response for one query: its neighbours, its numbers, and whether to answer.

    Parameters
    ----------
    neighbours : list of NeighbourAnswer
        Nearest first.
    label, label_probability
        Likeliest label among all neighbours, as ``SearchResult.label``: what is decided about.
    unknown : bool or None
        True if a conformal test of level alpha rejects "it has a match", by its ``p_value``.
    epistemic : float
        Small if the query is like the data of the fit.
    ambiguity : float or None
        Disagreement of the labels of the nearest items, in nats.
    threshold : float or None
        Probability from which to answer, of the label, or of the nearest item being a match where
        no labels calibrated the index.
    precision : float or None
        Guaranteed precision of that threshold; None if a number was given in its place.
    accepted : bool or None
        True to answer; None if the request has no threshold.
    decision : str
        The same in words.
    """

    model_config = ALWAYS

    neighbours: list[NeighbourAnswer]
    label: Name | None
    label_probability: float | None
    unknown: bool | None = None
    p_value: float | None = None
    epistemic: float
    ambiguity: float | None = None
    threshold: float | None
    precision: float | None
    accepted: bool | None
    decision: str


class EmbedAnswer(BaseModel):
    """An embedding with its numbers, as in ``Embedding``.

    Parameters
    ----------
    mean, variance : list of float
        [Z] each.
    epistemic : float
    ambiguity : float or None
        In nats; None for a fit without classes, as ``epistemic`` for one that stored nothing.
    """

    mean: list[float]
    variance: list[float]
    epistemic: float | None = None
    ambiguity: float | None = None


def search_answers(
    result: SearchResult, threshold: Threshold | float | None, texts: Mapping[Any, str]
) -> list[SearchAnswer]:
    """Return an answer for each query of a result; ``texts`` of items by their ids."""
    n, k = result.ids.shape
    columns = {name: _plain(values) for name, values in result.columns().items()}
    rows = rows_of({**columns, "row": result.positions.flatten().tolist()})
    accepted: list[bool | None] = [None] * n
    if threshold is not None:
        of = "match" if result.label_probability is None else "label"
        accepted = result.accepted(threshold, of).tolist()
    value, precision = threshold, None
    if isinstance(threshold, Threshold):
        value, precision = threshold.value, threshold.target
    answers = []
    for number in range(n):
        own = rows[number * k : (number + 1) * k]
        answer = {
            **own[0],  # numbers of the query stand in each of its rows
            "label": own[0].get("predicted_label"),
            "label_probability": own[0].get("predicted_probability"),
            "accepted": accepted[number],
            "threshold": value,
            "precision": precision,
        }
        # of an approximate engine, which may find fewer, row -1 is no item
        near = [row | {"text": texts.get(row["id"])} for row in own if row["row"] >= 0]
        answer |= {"neighbours": near, "decision": decision(near, answer)}
        answers.append(SearchAnswer.model_validate(answer))
    return answers


def embed_answers(embedding: Embedding) -> list[EmbedAnswer]:
    """Return an answer for each input."""
    columns = {}
    for name in EmbedAnswer.model_fields:
        with suppress(NotFittedError):
            if (values := getattr(embedding, name)) is not None:
                columns[name] = _plain(values)
    return [EmbedAnswer.model_validate(row) for row in rows_of(columns)]


def decision(neighbours: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> str:
    """Describe in plain words what to do with an answer, by the fields of `SearchAnswer`.

    Without a label of the query, the nearest item is the answer.

    Examples
    --------
    >>> near = {"id": "a.png", "label": "cat", "match_probability": 0.97}
    >>> answer = {"label": "cat", "label_probability": 0.99996, "unknown": False}
    >>> decision([near], {**answer, "accepted": True, "threshold": 0.8, "precision": 0.9})
    "Answer 'cat': right with probability > 99.9 %, and answers from 80.0 % on are guaranteed to \
be right at least 90 % of the time."
    """
    if not neighbours or neighbours[0].get("match_probability") is None:
        return "No decision: the index is not calibrated, so distances are all that is known."
    first, threshold, precision = neighbours[0], answer["threshold"], answer["precision"]
    if answer["label_probability"] is not None:
        name, p, subject, what = answer["label"], answer["label_probability"], "Likeliest", "right"
    else:
        name, p, subject, what = (
            first.get("label"),
            first["match_probability"],
            "Nearest",
            "a match",
        )
        name = first["id"] if name is None else name
    sure, unknown = f"{what} with probability {_percent(p)}", answer["unknown"]
    no_match = " Nothing in the index looks like a match of this query." if unknown else ""
    found = f"{subject} is {name!r}, {sure}."
    if threshold is None:
        return f"{found} No threshold was asked for.{no_match}"
    rule = f"from {_percent(threshold)} on it is answered"
    if precision is not None:
        rule = (
            f"answers from {_percent(threshold)} on are guaranteed to be right at least "
            f"{100 * precision:g} % of the time"
        )
    if answer["accepted"]:
        return f"Answer {name!r}: {sure}, and {rule}."
    if unknown:
        return f"Abstain:{no_match} Unknown queries are not answered. {found}"
    return f"Abstain: {name!r} is {sure}; {rule}."


def _percent(share: float) -> str:
    return as_percent(share).replace("%", " %")


def _plain(values: Any) -> Any:
    """Return lists of numbers as JSON has them: None in the place of NaN and infinity."""
    if isinstance(values, list):
        return [_plain(value) for value in values]
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    return _plain(values.tolist()) if hasattr(values, "tolist") else values
