"""``SearchService``: questions in, answers out; all of the server but HTTP.

One thread calls the model. Queries that wait for it go in together, where that is quick: with a
small network most of a call is the same for 1 and for 16 queries. With a deep one on a CPU, 16 take
as long as 16 calls, or longer, and all wait for the last. So as many go in together as

    n = min(batch, BUDGET / s),    s: seconds a query of the last call

and one alone if s is more than the budget.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._thresholds import Threshold
from laplace_metric.cli._gallery import load_gallery
from laplace_metric.cli._output import Reporter
from laplace_metric.cli._sources import IMAGES, require_data
from laplace_metric.cli.serve._guard import Limits, RequestRefused
from laplace_metric.cli.serve._metrics import DriftWatch, ServerMetrics, calibration_reference
from laplace_metric.cli.serve._query import (
    ALPHA,
    EmbedAnswer,
    QueryReader,
    Question,
    SearchAnswer,
    embed_answers,
    search_answers,
)
from laplace_metric.errors import InputError, LaplaceMetricError, NotFittedError
from laplace_metric.models._calling import Inputs

BUDGET = 0.05
"""Seconds that a call of several queries should take at most."""
BATCH = 64
"""Queries of --reference at once."""


class ServedIndex:
    """All that a reload replaces at once; requests that began with it end with it.

    Parameters
    ----------
    options : Namespace
        Of the command line.
    limits : Limits
    reporter : Reporter

    Attributes
    ----------
    gallery : LoadedIndex
    reader : QueryReader
    drift : DriftWatch or None
        A monitor that begins anew.
    texts : mapping of id to str
        Items that are texts, for answers.
    """

    def __init__(self, options: Namespace, limits: Limits, reporter: Reporter) -> None:
        require_data(options)
        self.gallery = gallery = load_gallery(options.index, options, reporter)
        self.index = gallery.index
        self.drift = self._drift(options, reporter)
        if gallery.posterior.recipe.kind == IMAGES and gallery.origin.data is not None:
            try:
                gallery.item_pictures(inside=True)
            except InputError as error:
                reporter.note(f"images of items are not served: {error}")
        self.reader = QueryReader(gallery, options, limits)
        self.texts = gallery.item_texts(reporter)

    def _drift(self, options: Namespace, reporter: Reporter) -> DriftWatch | None:
        watch = partial(DriftWatch, window=options.window, false_alarms=options.false_alarms)
        if options.reference is not None:
            source = self.gallery.queries(options.reference, options, reporter)
            found = self.index.search(source.batches(BATCH), 1, progress=reporter.progress)
            return watch(found.signals)
        try:
            reference = calibration_reference(self.index.calibration)
            return watch(reference) if reference else None
        except InputError as error:
            reporter.note(f"drift is not watched: {error} Give held-out queries: --reference DATA")
            return None

    @property
    def cross_fitted(self) -> bool:
        """True if the items themselves calibrated the index."""
        return self.index.calibration is not None and self.index.calibration.own_items

    def guaranteed(self, precision: float, alpha: float = ALPHA) -> Threshold:
        """Return the probability from which that share of answers is right.

        Answers are those of ``Calibration.decides_about``.

        Raises
        ------
        NotFittedError
            For an index without a calibration.
        InputError
            For a precision that its calibration cannot guarantee.
        """
        calibration = self.calibrated("precision")
        of = calibration.decides_about
        return calibration.threshold_for(precision=precision, of=of, alpha=alpha)

    def calibrated(self, name: str) -> Calibration:
        """Return the calibration, which the field ``name`` needs.

        Raises
        ------
        NotFittedError
            Without one.
        """
        if self.index.calibration is None:
            raise NotFittedError(
                f"{name}: this index is not calibrated, so it has no match probabilities. Leave it "
                "out, or build the index with held-out queries."
            )
        return self.index.calibration


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
        limits: Limits,
        *,
        precision: float | None = None,
        batch: int = 16,
    ) -> None:
        self.limits, self.precision, self.metrics = limits, precision, ServerMetrics()
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
        k, alpha, precision = question.k, question.alpha, question.precision or self.precision
        if k > (n := len(served.index)):
            raise RequestRefused(f"k={k}: the index has {n} items.")
        inputs = served.reader.read(question)
        threshold: Threshold | float | None = question.threshold
        if threshold is not None:
            served.calibrated("threshold")
        elif precision is not None:
            threshold = served.guaranteed(precision, alpha)
        run = partial(self._search, served, k, alpha, threshold)
        key = (id(served), k, alpha, threshold, _like(inputs))
        return self._worker.submit(Job(key, inputs, run))

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
            raise RequestRefused("the index is being loaded already: wait for that.", 409)
        succeeded = False
        try:
            self.served = self._loaded()
            succeeded = True
            return len(self.served.index)
        finally:
            self.metrics.reload(succeeded=succeeded)
            self._reloading.release()

    def metrics_text(self) -> str:
        """Return the page for Prometheus."""
        return self.metrics.text(len(self.served.index), self.served.drift)

    def close(self) -> None:
        """Answer what is queued, then refuse."""
        self._worker.close()

    def _loaded(self) -> ServedIndex:
        served = self._load()
        if self.precision is not None:  # a guarantee that cannot hold is refused at the start
            served.guaranteed(self.precision)
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
        if served.drift is not None:
            served.drift.add(result.signals)
        answers = search_answers(result, threshold, served.texts)
        self.metrics.batch(len(answers))
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
        self._waiting, self._lock = deque[Job](), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "model")

    def submit(self, job: Job) -> Future[Any]:
        """Queue it.

        Raises
        ------
        RequestRefused
            After ``close``.
        """
        with self._lock:  # one turn of the thread for each job that waits
            try:
                self._thread.submit(self._work)
            except RuntimeError as error:
                raise RequestRefused("the server is stopping: ask again later.", 503) from error
            self._waiting.append(job)
        return job.result

    def close(self) -> None:
        """Run what is queued, then end."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Run the jobs that wait, as many as go together; none if an earlier turn took them."""
        together: dict[Hashable, list[Job]] = {}
        with self._lock:
            for _ in range(min(len(self._waiting), self._together)):
                job = self._waiting.popleft()
                together.setdefault(job.key, []).append(job)
        for group in together.values():
            begin = time.perf_counter()
            run_together(group)
            seconds = (time.perf_counter() - begin) / len(group)
            self._together = max(1, min(self.batch, int(BUDGET / max(seconds, 1e-9))))


def run_together(jobs: Sequence[Job]) -> None:
    """Run one call for all; if it fails, each alone, so that a bad query fails for itself."""
    inputs = [job.inputs for job in jobs]
    try:
        together = torch.cat(inputs) if isinstance(inputs[0], Tensor) else list(chain(*inputs))
        results = jobs[0].run(together)
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
