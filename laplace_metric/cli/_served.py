"""What a server answers: bodies of requests -> queries -> answers, by one thread for the model.

An index or guard on disk is loaded here, too, as the options of ``laplace-metric serve`` name it.
The HTTP around it is ``laplace_metric.serve``; this needs the extra ``serve`` as well.
"""

from __future__ import annotations

import copy
import io
import logging
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import torch
from prometheus_client import CollectorRegistry, Counter
from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from torch import Tensor

from laplace_metric._utils.batching import Job, Worker
from laplace_metric.calibration import Rule
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.cli._gallery import load_gallery
from laplace_metric.cli._model_recipe import read_options_of
from laplace_metric.cli._reporter import Reporter
from laplace_metric.cli._source import ARRAYS, IMAGES, TEXTS, ReadOptions
from laplace_metric.cli._table_files import rows_of
from laplace_metric.datasets._grey_or_rgb import TRANSPARENT
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError
from laplace_metric.guard import GUARD, Guard
from laplace_metric.io import SavedFile
from laplace_metric.search import Index
from laplace_metric.search._among import rows_among

LOG = logging.getLogger("uvicorn.error")
ROWS, NUMBERS, CHARACTERS, NEIGHBOURS = 64, 65_536, 20_000, 1_000
"""Most queries of a request, numbers of a vector, characters of a text, and k."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Image formats that are read: no other decoder sees what a client sends."""
IMAGE_BYTES = 256 * 2**20
"""Bytes that decoding an image may take: 8 a pixel, or 20 if it is laid on white."""
Read = Callable[[Any], Tensor]
Vector = Annotated[list[FiniteFloat], FailFast(), Field(min_length=1, max_length=NUMBERS)]
Text = Annotated[str, Field(max_length=CHARACTERS, pattern=r"\S")]


class Options(BaseModel):
    """Fields next to the queries; in the address if the body is an image."""

    model_config = ConfigDict(extra="forbid")
    k: int = Field(5, ge=1, le=NEIGHBOURS, description="Neighbours of each query.")
    precision: float | None = Field(
        None, gt=0, lt=1, description="Share of the answers that are right, to be guaranteed."
    )


class Question(Options):
    """Queries of one request, of the kind that the index has."""

    vectors: Annotated[list[Vector], FailFast()] = Field(
        [], max_length=ROWS, description="[Q, D]: finite numbers."
    )
    texts: list[Text] = Field([], max_length=ROWS, description="Q texts, none of them blank.")
    among: list[StrictInt | StrictStr] | None = Field(
        None, description="Ids of the items that may be found; null: all."
    )


class Neighbour(BaseModel):
    """One item of the gallery, as in ``SearchResult``; null where a number is not known."""

    id: str | int
    label: str | int | None = None
    distance: float
    distance_sd: float | None
    match_probability: float | None = None


class SearchAnswer(BaseModel):
    """Answer to one query. ``reason`` is "unfamiliar" or "uncertain" if it is not answered."""

    label: str | int | None = None
    probability: float | None = None
    answered: bool | None = Field(None, description="null: no precision was asked for.")
    level: int | None = Field(
        None, description="0: a label, 1 and up: a coarser group; null: no answer, or no levels."
    )
    reason: str | None = None
    p_value: float | None = None
    epistemic: float
    ambiguity: float | None = None
    neighbours: list[Neighbour] = Field(description="The nearest is the first.")


class EmbedAnswer(BaseModel):
    """Embedding of one query; the last two are null if the fit stored nothing to compare with."""

    mean: list[float]
    variance: list[float]
    epistemic: float | None = None
    ambiguity: float | None = None


class Service:
    """Bodies of requests -> answers, by one thread that calls the model."""

    def __init__(
        self,
        index: Index,
        embedder: Any,
        read: str | Read,
        precision: float | None,
        worker: Worker,
        registry: CollectorRegistry,
        *,
        by_class: bool = False,
        coarser: Levels | None = None,
    ) -> None:
        self.index, self.embedder, self.read, self.worker = index, embedder, read, worker
        self.precision, self.by_class, self.coarser = precision, by_class, coarser
        ours: Any = {"namespace": "laplace_metric", "registry": registry}
        self.calls = Counter("model_calls", "Calls of the model.", **ours)
        self.queries = Counter("model_queries", "Queries in calls of the model.", **ours)
        self.answers = Counter("answers", "Queries by why none is given.", ["reason"], **ours)
        if precision is not None:
            self._rule(index, precision)  # what cannot hold is refused at the start

    def check_free(self) -> None:
        """Raise 503 if as many requests wait for the model as may."""
        if self.worker.full:
            raise HTTPException(
                503, "too many queries wait: ask again later.", {"Retry-After": "1"}
            )

    def job(self, path: str, kind: str, body: bytes, given: Mapping[str, str]) -> Future[list[Any]]:
        """Read a request, whose address has the fields ``given``, and queue it."""
        asked: Options
        if callable(self.read):
            if not kind.startswith("image/"):
                raise HTTPException(415, "this index has images: send one, as image/jpeg or so.")
            asked, inputs = Options.model_validate(given), picture(body, self.read)
        else:
            try:
                asked = Question.model_validate({**given, **from_json(body, allow_inf_nan=False)})
            except TypeError as error:
                raise HTTPException(400, 'the body is no JSON object {"...": ...}.') from error
            except ValueError as error:
                if isinstance(error, ValidationError):
                    raise
                raise HTTPException(400, f"the body is no JSON: {error}.") from error
            inputs = self._inputs(asked)
        call: Callable[[Any], Sequence[Any]] = self._embed
        among = asked.among if isinstance(asked, Question) else None
        if path == "/search":
            if among is not None:
                rows_among(self.index.items, among)  # refused before the model runs
            precision = asked.precision or self.precision
            if precision is not None:
                self._rule(self.index, precision)  # refused before the model runs
            call = partial(self._search, asked.k, precision, among)
        if not len(inputs):
            return _done([])
        like = (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else ()
        self.check_free()  # others have come meanwhile
        key = path, asked.k, asked.precision, like, None if among is None else tuple(among)
        return self.worker.submit(Job(key, partial(self._called, call), inputs))

    def _rule(self, index: Index, precision: float) -> Rule:
        if self.by_class:
            return index.guarantee_by_class(precision)
        if self.coarser is not None:
            return index.guarantee_by_level(precision, self.coarser)
        return index.guarantee(precision=precision)

    def _inputs(self, asked: Question) -> Any:
        rows = {"vectors": asked.vectors, "texts": asked.texts}
        named = [name for name in rows if name in asked.model_fields_set]
        given = [name for name in named if rows[name]] or named  # none of them: an empty batch
        if given != [self.read]:
            raise InputError(f"this index has {self.read}: send {self.read}, and nothing else.")
        if self.read == "texts":
            return asked.texts
        if not asked.vectors:
            return []
        widths = [len(vector) for vector in asked.vectors]
        for row, width in enumerate(widths):
            if width != widths[0]:
                raise InputError(f"vectors[{row}] has {width} numbers, vectors[0] {widths[0]}.")
        return torch.tensor(asked.vectors, dtype=self.index.items.encoded.mean.dtype)

    def _called(self, call: Callable[[Any], Sequence[Any]], inputs: Any) -> Sequence[Any]:
        self.calls.inc()
        self.queries.inc(len(inputs))
        try:
            return call(inputs)
        except (LaplaceMetricError, torch.cuda.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            LOG.warning("the model fails on inputs of a request", exc_info=error)
            raise InputError("the model fails on these inputs: its log has the reason.") from error

    def _search(
        self, k: int, precision: float | None, among: list[Any] | None, inputs: Any
    ) -> list[dict[str, Any]]:
        index = copy.copy(self.index)  # one calibration for the rule and the search
        found = index.search(inputs, k, among=among)
        rule = None if precision is None else self._rule(index, precision)
        items = rows_of({name: _plain(column) for name, column in found.columns().items()})
        places, answers = found.positions.flatten().tolist(), []
        given = None if rule is None else rule(found)
        for row in range(len(found)):
            near = range(row * k, (row + 1) * k)
            about = items[near[0]]  # numbers of the query stand in each of its rows
            probability = about.get("label_probability", about.get("match_probability"))
            answer = {"label": about.get("label"), "probability": probability}
            answer |= {"answered": None, "reason": None, "level": None}
            if given is not None:
                one = given[row]
                answer |= {"answered": one.answered, "reason": one.reason}
                if given.level is not None and one.answered:
                    answer |= {"label": one.label, "probability": one.probability}
                    answer["level"] = int(given.level[row])
                self.answers.labels(one.reason or "answered").inc()
            answer |= {name: about.get(name) for name in ("p_value", "epistemic", "ambiguity")}
            # an approximate engine may find fewer, and few may be allowed: place -1 is no item
            neighbours = [items[place] for place in near if places[place] >= 0]
            names = {name: name for name in Neighbour.model_fields} | {"label": "item_label"}
            answer["neighbours"] = [
                {name: item.get(column) for name, column in names.items()} for item in neighbours
            ]
            answers.append(answer)
        return answers

    def _embed(self, inputs: Any) -> list[dict[str, Any]]:
        embedding, columns = self.embedder(inputs), {}
        for name in EmbedAnswer.model_fields:
            with suppress(NotFittedError):
                columns[name] = _plain(getattr(embedding, name))
        return rows_of(columns)


def _done(answers: list[Any]) -> Future[list[Any]]:
    """Return a future that is there already."""
    future: Future[list[Any]] = Future()
    future.set_result(answers)
    return future


def _plain(values: Any) -> Any:
    """Return arrays as lists, with None in the place of NaN and infinity, which JSON lacks."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def picture(content: bytes, read: Read) -> Tensor:
    """Return an image file as a batch of one; its size is checked before a pixel is decoded."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            on_white = file.mode in TRANSPARENT or "transparency" in file.info
            if file.width * file.height <= IMAGE_BYTES // (20 if on_white else 8):
                return read(file)[None]
    except Exception as error:  # decoders raise whatever they meet
        raise HTTPException(415, f"the image cannot be read as {', '.join(FORMATS)}.") from error
    raise HTTPException(413, "the image has too many pixels: scale it down.")


# An index or a guard on disk.


def served_by(options: Namespace) -> tuple[Index | Guard, Any, str | Read]:
    """Load what the options of the command name: an index or guard, its embedder, how to read.

    Raises
    ------
    InputError
        For an index of which it is not known what its items are.
    """
    reporter = Reporter(options.quiet)
    with reporter.warnings():
        if options.index.is_file() and GUARD.name in SavedFile(options.index, mapped=True):
            return Guard.load(options.index), None, "vectors"
        gallery = load_gallery(options.index, options, reporter)
    recipe, loaded = gallery.posterior.recipe, gallery.posterior.loaded
    if recipe.kind is None:
        raise InputError(
            "the posterior was saved in Python, which does not store whether its inputs are "
            "images or texts: call laplace_metric.serve.create_app(index, read=...)."
        )
    read: str | Read = {ARRAYS: "vectors", TEXTS: "texts"}.get(recipe.kind, "")
    if recipe.kind == IMAGES:
        ways = ReadOptions(**{**recipe.read_options, **read_options_of(options)})
        transform = None if loaded is None else loaded.transform
        pixels = Pixels(options.index, ways.size, ways.channels or 3, transform)

        def read(image: Any) -> Tensor:
            return pixels.tensor(pixels.converted(image))

    return gallery.index, gallery.posterior.embedder, read
