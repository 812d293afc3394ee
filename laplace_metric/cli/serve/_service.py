"""``SearchService``: questions in, answers out; all of the server but HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.serve._answers import (
    EmbedAnswer,
    SearchAnswer,
    embed_answers,
    search_answers,
)
from laplace_metric.cli.serve._drift import DriftSummary, DriftWatch
from laplace_metric.cli.serve._guard import CONFLICT, Limits, RequestRefused
from laplace_metric.cli.serve._metrics import ServerMetrics
from laplace_metric.cli.serve._question import ALPHA, Question
from laplace_metric.cli.serve._reader import QueryReader
from laplace_metric.cli.serve._worker import Job, Worker
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError
from laplace_metric.models._calling import Inputs
from laplace_metric.search import Index


@dataclass(frozen=True)
class ServedIndex:
    """All that is replaced at once by a reload; requests that began with it end with it.

    Parameters
    ----------
    gallery : LoadedIndex
    reader : QueryReader
    drift : DriftWatch or None
    promised : callable
        Precision, alpha -> Threshold; remembered.
    texts : mapping of id to str
        What items say, for answers.
    """

    gallery: LoadedIndex
    reader: QueryReader
    drift: DriftWatch | None
    promised: Callable[[float, float], Threshold]
    texts: Mapping[Any, str]

    @classmethod
    def of(
        cls,
        gallery: LoadedIndex,
        reader: QueryReader,
        drift: DriftWatch | None,
        texts: Mapping[Any, str],
    ) -> ServedIndex:
        """With thresholds of the calibration of ``gallery``."""
        promised = lru_cache(64)(partial(_promised, gallery.index))
        return cls(gallery, reader, drift, promised, texts)

    def threshold(self, question: Question) -> Threshold | float | None:
        """From which match probability to answer.

        Raises
        ------
        NotFittedError
            Of an index without a calibration.
        InputError
            For a precision that its calibration cannot promise.
        """
        if question.precision is not None:
            return self.promised(question.precision, question.alpha)
        if question.threshold is not None:
            _require_calibrated(self.gallery.index, "threshold")
        return question.threshold


class SearchService:
    """Answers from any number of threads; one of its own calls the model.

    Parameters
    ----------
    load : callable
        Makes the ``ServedIndex``, again for each reload.
    limits : Limits
    precision : float or None
        To promise where a question asks for nothing; None: nothing is promised then.
    batch : int
        Most waiting queries in one call of the model.

    Attributes
    ----------
    metrics : ServerMetrics

    Raises
    ------
    InputError
        If the index cannot promise ``precision``.
    """

    def __init__(
        self,
        load: Callable[[], ServedIndex],
        limits: Limits | None = None,
        *,
        precision: float | None = None,
        batch: int = 16,
    ) -> None:
        self.limits = Limits() if limits is None else limits
        self.precision, self.metrics = precision, ServerMetrics()
        self._load, self._reloading = load, threading.Lock()
        self._served = self._loaded()
        self._worker = Worker(batch)

    @property
    def served(self) -> ServedIndex:
        """The index that is searched now."""
        return self._served

    def ask(self, fields: Mapping[str, Any]) -> Future[SearchAnswer]:
        """Read a question and queue it; see ``Question.of`` for the fields.

        Raises
        ------
        RequestRefused
            For a question that cannot be answered; also ``InputError``, ``NotFittedError``.
        """
        served = self._served
        limits = replace(self.limits, width=served.reader.width)
        question = Question.of(fields, limits).with_default(self.precision)
        if question.k > (n := len(served.gallery.index)):
            raise RequestRefused(f"k={question.k}: the index has {n} items.")
        inputs, threshold = served.reader.read(question), served.threshold(question)
        how = question.k, question.alpha, threshold
        run = partial(self._search, served, *how)
        return self._worker.submit(Job((id(served), *how, *_like(inputs)), inputs, run))

    def embed(self, fields: Mapping[str, Any]) -> Future[EmbedAnswer]:
        """Read a query and queue it for its embedding.

        Raises
        ------
        RequestRefused, InputError
            For a query that cannot be embedded.
        """
        served = self._served
        question = Question.of(fields, replace(self.limits, width=served.reader.width))
        inputs = served.reader.read(question)
        run = partial(self._embed, served)
        return self._worker.submit(Job((id(served), "embed", *_like(inputs)), inputs, run))

    def most_bytes(self, content_type: str) -> int:
        """Bytes that a body of this type may have."""
        return self._served.reader.most_bytes(content_type, self.limits)

    def reload(self) -> int:
        """Load the index again; what runs meanwhile is answered by the old one, also if it fails.

        Returns
        -------
        int
            Items of the new one.

        Raises
        ------
        RequestRefused
            While another reload runs.
        LaplaceMetricError, OSError
            If it cannot be loaded.
        """
        if not self._reloading.acquire(blocking=False):
            raise RequestRefused("the index is being loaded already: wait for that.", CONFLICT)
        try:
            served = self._loaded()
        except BaseException:
            self.metrics.reload(succeeded=False)
            raise
        else:
            self._served = served
            self.metrics.reload(succeeded=True)
            return len(served.gallery.index)
        finally:
            self._reloading.release()

    def drift(self) -> DriftSummary | None:
        """Return the summary of the monitor; None without a reference."""
        drift = self._served.drift
        return None if drift is None else drift.summary()

    def metrics_text(self) -> str:
        """For Prometheus."""
        return self.metrics.text(len(self._served.gallery.index), self.drift())

    def close(self) -> None:
        """Answer what is queued, then refuse."""
        self._worker.close()

    def _loaded(self) -> ServedIndex:
        served = self._load()
        if self.precision is not None:
            served.promised(
                self.precision, ALPHA
            )  # a promise that cannot be kept is said at the start
        return served

    def _search(
        self,
        served: ServedIndex,
        k: int,
        alpha: float,
        threshold: Threshold | float | None,
        inputs: Inputs,
    ) -> Sequence[SearchAnswer]:
        result = _called(lambda x: served.gallery.index.search(x, k, alpha=alpha), inputs)
        self.metrics.batch(len(result))
        if served.drift is not None:
            served.drift.add(result.signals)
        answers = search_answers(result, threshold, served.texts)
        for answer in answers:
            self.metrics.answer(accepted=answer.accepted, unknown=answer.unknown)
        return answers

    def _embed(self, served: ServedIndex, inputs: Inputs) -> Sequence[EmbedAnswer]:
        answers: list[EmbedAnswer] = _called(
            lambda x: embed_answers(served.gallery.posterior.embedder(x)), inputs
        )
        self.metrics.batch(len(answers))
        return answers


def _called(call: Callable[[Inputs], Any], inputs: Inputs) -> Any:
    """Call the model; its exceptions at these inputs become 4xx responses."""
    try:
        return call(inputs)
    except Exception as error:
        raised = _whose(error, inputs)
        raise raised from error.__cause__


def _whose(error: Exception, inputs: Inputs) -> Exception:
    """The error itself, or an ``InputError`` where it is of a kind that inputs bring about."""
    ours = isinstance(error, (LaplaceMetricError, torch.cuda.OutOfMemoryError))
    if ours or not isinstance(error, (RuntimeError, ValueError, TypeError, IndexError)):
        return error
    shape = list(inputs.shape) if isinstance(inputs, torch.Tensor) else "these texts"
    line = (str(error).strip().splitlines() or [""])[0]
    return InputError(f"the model fails on {shape}: {type(error).__name__}: {line}")


def _like(inputs: Inputs) -> tuple[Any, ...]:
    """Return the key that inputs of one batch have in common."""
    if isinstance(inputs, torch.Tensor):
        return tuple(inputs.shape[1:]), inputs.dtype
    return ("texts",)


def _promised(index: Index, precision: float, alpha: float) -> Threshold:
    _require_calibrated(index, "precision")
    assert index.calibration is not None
    return index.calibration.threshold_for(precision=precision, alpha=alpha)


def _require_calibrated(index: Index, name: str) -> None:
    if index.calibration is None:
        raise NotFittedError(
            f"{name}: this index is not calibrated, so it has no match probabilities. Leave it "
            "out, or build the index with held-out queries."
        )
