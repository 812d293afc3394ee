"""``SearchService``: questions in, answers out; all of the server but HTTP.

One thread calls the model. Queries that wait for it go in together, where that is quick: with a
small network most of a call is the same for 1 and for 16 queries. With a deep one on a CPU, 16 take
as long as 16 calls, or longer, and all wait for the last. So as many go in together as

    n = min(batch, BUDGET / s),    s: seconds a query of the last call

and one alone if s is more than the budget.
"""

from __future__ import annotations

import queue
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.cli._gallery import LoadedIndex, load_gallery
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.serve._answers import (
    EmbedAnswer,
    SearchAnswer,
    embed_answers,
    search_answers,
)
from laplace_metric.cli.serve._guard import BUSY, CONFLICT, Limits, RequestRefused
from laplace_metric.cli.serve._metrics import (
    DriftSummary,
    DriftWatch,
    ServerMetrics,
    calibration_reference,
)
from laplace_metric.cli.serve._query import ALPHA, QueryReader, Question
from laplace_metric.cli.sources import IMAGES, require_source
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError
from laplace_metric.models._calling import Inputs

BUDGET = 0.05
"""Seconds that a call of several queries should take at most."""
BATCH = 64
"""Queries of --reference at once."""
LEAST = 30
"""Calibration queries that a monitor needs."""


class ServedIndex:
    """All that a reload replaces at once; requests that began with it end with it.

    Parameters
    ----------
    gallery : LoadedIndex
    reader : QueryReader
    drift : DriftWatch or None
    texts : mapping of id to str
        Items that are texts, for answers.
    """

    def __init__(
        self,
        gallery: LoadedIndex,
        reader: QueryReader,
        drift: DriftWatch | None,
        texts: Mapping[Any, str],
    ) -> None:
        self.gallery, self.reader, self.drift, self.texts = gallery, reader, drift, texts
        self.index = gallery.index
        self.guaranteed = lru_cache(64)(self._guaranteed)

    def threshold(self, question: Question, default: float | None) -> Threshold | float | None:
        """Return the match probability from which to answer.

        Parameters
        ----------
        question : Question
        default : float or None
            Precision to guarantee if the question has neither threshold nor precision.

        Raises
        ------
        NotFittedError
            For an index without a calibration.
        InputError
            For a precision that its calibration cannot guarantee.
        """
        if question.threshold is not None:
            self._require_calibrated("threshold")
            return question.threshold
        precision = default if question.precision is None else question.precision
        return None if precision is None else self.guaranteed(precision, question.alpha)

    def _guaranteed(self, precision: float, alpha: float) -> Threshold:
        self._require_calibrated("precision")
        assert self.index.calibration is not None
        return self.index.calibration.threshold_for(precision=precision, alpha=alpha)

    def _require_calibrated(self, name: str) -> None:
        if self.index.calibration is None:
            raise NotFittedError(
                f"{name}: this index is not calibrated, so it has no match probabilities. Leave it "
                "out, or build the index with held-out queries."
            )


def load_served(options: Namespace, limits: Limits, reporter: Reporter) -> ServedIndex:
    """Load the index of the options, with its reader and a monitor that begins anew."""
    if options.reference is not None:
        require_source(options.reference)
    gallery = load_gallery(options.index, options, reporter)
    reference = _reference(gallery, options, reporter)
    window, rate = options.window, options.false_alarms
    drift = DriftWatch(reference, window=window, false_alarms=rate) if reference else None
    if gallery.posterior.recipe.kind == IMAGES and gallery.origin.data is not None:
        try:
            gallery.image_folder()
        except InputError as error:
            reporter.note(f"images of items are not served: {error}")
    reader = QueryReader.of(gallery, options, limits)
    return ServedIndex(gallery, reader, drift, gallery.item_texts(reporter))


def _reference(gallery: LoadedIndex, options: Namespace, reporter: Reporter) -> dict[str, Tensor]:
    if options.reference is not None:
        source = gallery.queries(options.reference, options, reporter)
        loader = reporter.watch("Reference", source.inputs(BATCH))
        return gallery.index.search(loader, 1).signals
    try:
        reference = calibration_reference(gallery.index.calibration)
    except InputError as error:
        reporter.note(str(error))
        return {}
    if all(len(values) >= LEAST for values in reference.values()):
        return reference
    reporter.note(f"fewer than {LEAST} held-out queries: drift is not watched. Give --reference")
    return {}


class SearchService:
    """Answers from any number of threads; one of its own calls the model.

    Parameters
    ----------
    load : callable
        Makes the ``ServedIndex``, again for each reload.
    limits : Limits
    precision : float or None
        Guaranteed for questions that have neither threshold nor precision; None: no guarantee.
    batch : int
        Most waiting queries in one call of the model.

    Attributes
    ----------
    served : ServedIndex
        The index that is searched now.
    metrics : ServerMetrics

    Raises
    ------
    InputError
        If the index cannot guarantee ``precision``.
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
        self.served = self._loaded()
        self._worker = Worker(batch)

    def ask(self, fields: Mapping[str, Any]) -> Future[SearchAnswer]:
        """Read a question and queue it; see ``Question`` for the fields.

        Raises
        ------
        RequestRefused
            For a question that cannot be answered; also ``InputError``, ``NotFittedError``.
        """
        served, question = self.served, Question.of(fields)
        if question.k > (n := len(served.index)):
            raise RequestRefused(f"k={question.k}: the index has {n} items.")
        inputs = served.reader.read(question)
        threshold = served.threshold(question, self.precision)
        k, alpha = question.k, question.alpha
        run = partial(self._search, served, k, alpha, threshold)
        return self._worker.submit(
            Job((id(served), k, alpha, threshold, _like(inputs)), inputs, run)
        )

    def embed(self, fields: Mapping[str, Any]) -> Future[EmbedAnswer]:
        """Read a query and queue it for its embedding.

        Raises
        ------
        RequestRefused, InputError
            For a query that cannot be embedded.
        """
        served = self.served
        inputs = served.reader.read(Question.of(fields))
        run = partial(self._embed, served)
        return self._worker.submit(Job((id(served), "embed", _like(inputs)), inputs, run))

    def most_bytes(self, content_type: str) -> int:
        """Bytes that a body of this type may have."""
        return self.served.reader.most_bytes(content_type, self.limits)

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
        succeeded = False
        try:
            self.served = self._loaded()
            succeeded = True
            return len(self.served.index)
        finally:
            self.metrics.reload(succeeded=succeeded)
            self._reloading.release()

    def drift(self) -> DriftSummary | None:
        """Return the summary of the monitor; None without a reference."""
        drift = self.served.drift
        return None if drift is None else drift.summary()

    def metrics_text(self) -> str:
        """Return the page for Prometheus."""
        return self.metrics.text(len(self.served.index), self.drift())

    def close(self) -> None:
        """Answer what is queued, then refuse."""
        self._worker.close()

    def _loaded(self) -> ServedIndex:
        served = self._load()
        if self.precision is not None:  # a guarantee that cannot hold is refused at the start
            served.guaranteed(self.precision, ALPHA)
        return served

    def _search(
        self,
        served: ServedIndex,
        k: int,
        alpha: float,
        threshold: Threshold | float | None,
        inputs: Inputs,
    ) -> Sequence[SearchAnswer]:
        result = _called(lambda x: served.index.search(x, k, alpha=alpha), inputs)
        self.metrics.batch(len(result))
        if served.drift is not None:
            served.drift.add(result.signals)
        answers = search_answers(result, threshold, served.texts)
        for answer in answers:
            self.metrics.answer(accepted=answer.accepted, unknown=answer.unknown)
        return answers

    def _embed(self, served: ServedIndex, inputs: Inputs) -> Sequence[EmbedAnswer]:
        answers = embed_answers(_called(served.gallery.posterior.embedder, inputs))
        self.metrics.batch(len(answers))
        return answers


def _called(call: Callable[[Inputs], Any], inputs: Inputs) -> Any:
    """Call the model; its exceptions at these inputs become ``InputError``, so 4xx responses."""
    try:
        return call(inputs)
    except (LaplaceMetricError, torch.cuda.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = list(inputs.shape) if isinstance(inputs, Tensor) else "these texts"
        line = (str(error).strip().splitlines() or [""])[0]
        what = f"the model fails on {shape}: {type(error).__name__}: {line}"
        raise InputError(what) from error.__cause__


def _like(inputs: Inputs) -> Hashable:
    """Return the key that inputs of one batch have in common."""
    return (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else "texts"


@dataclass(frozen=True)
class Job:
    """A batch of one that waits for its result.

    Parameters
    ----------
    key : hashable
        Jobs with one key may go in together.
    inputs : Tensor [1, ...] or list of one str
    run : callable
        Inputs of B jobs -> a result for each of them.
    """

    key: Hashable
    inputs: Any
    run: Callable[[Any], Sequence[Any]]
    result: Future[Any] = field(default_factory=Future)


class Worker:
    """Runs jobs in the order in which they came, at most ``batch`` with one key in a call.

    It never waits for a batch to fill: what has come while the model was busy goes in together.

    Parameters
    ----------
    batch : int

    Examples
    --------
    >>> worker = Worker(batch=4)
    >>> worker.submit(Job("double", ["a"], lambda texts: [2 * text for text in texts])).result()
    'aa'
    >>> worker.close()
    """

    def __init__(self, batch: int) -> None:
        self.batch, self._together = batch, 1
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Any]:
        """Queue it.

        Raises
        ------
        RequestRefused
            After ``close``.
        """
        with self._closing:
            if self._closed:
                raise RequestRefused("the server is stopping: ask again later.", BUSY)
            self._jobs.put(job)
        return job.result

    def close(self) -> None:
        """Run what is queued, then end."""
        with self._closing:
            if not self._closed:
                self._jobs.put(None)
            self._closed = True
        self._thread.join()

    def _work(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._waiting()
            together: dict[Hashable, list[Job]] = {}
            for job in jobs:
                together.setdefault(job.key, []).append(job)
            for group in together.values():
                begin = time.perf_counter()
                run_together(group)
                seconds = (time.perf_counter() - begin) / len(group)
                self._together = max(1, min(self.batch, int(BUDGET / max(seconds, 1e-9))))

    def _waiting(self) -> tuple[list[Job], bool]:
        """Return the jobs that have arrived, at least one; and whether more may come."""
        taken: list[Job] = []
        while len(taken) < self._together:
            try:
                job = self._jobs.get(block=not taken)
            except queue.Empty:
                break
            if job is None:
                return taken, False
            taken.append(job)
        return taken, True


def run_together(jobs: Sequence[Job]) -> None:
    """Run one call for all; if it fails, each alone, so that a bad query fails for itself."""
    several = [job.inputs for job in jobs]
    if isinstance(several[0], Tensor):
        inputs: Any = torch.cat(several)
    else:
        inputs = [text for texts in several for text in texts]
    try:
        results = jobs[0].run(inputs)
    except Exception as error:
        if len(jobs) > 1:
            for job in jobs:
                run_together([job])
        elif jobs[0].result.set_running_or_notify_cancel():
            jobs[0].result.set_exception(error)
        return
    for job, result in zip(jobs, results, strict=True):
        if job.result.set_running_or_notify_cancel():  # else the client has gone
            job.result.set_result(result)
