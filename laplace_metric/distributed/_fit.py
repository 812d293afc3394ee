"""Runs a schedule of passes where the points are: on every rank, and once if there is a checkpoint.

Every rank reads its own points; merged statistics are audited, finished, and kept.

The four phases of a fit on several ranks, or from where a killed process left a checkpoint.

Each phase is the one of ``laplace._fit``, run on every rank; a durable store keeps the features
that it had when the process ended. Batches that it holds are skipped, and checked by their labels
and by the features of the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.display import tqdm
from laplace_metric._utils.randomness import as_generator, at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._ggn import curvature_passes
from laplace_metric.curvature._margin import column_groups
from laplace_metric.curvature._passes import Pass, PassSchedule, Statistics, next_pass
from laplace_metric.curvature._structures import Curvature, check_memory
from laplace_metric.distributed._checkpoint import Checkpoint, ProcessGroup, open_checkpoint
from laplace_metric.errors import EmptyLoaderError, InputError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._locate import LocatedHead, capture, locate_head
from laplace_metric.io import digest
from laplace_metric.laplace._fit import (
    Batches,
    HeadBatches,
    in_dtype,
    posterior_of,
    where,
    with_near_far,
)
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._settings import FitOptions, Settings
from laplace_metric.models._calling import device_of, labelled_batches
from laplace_metric.models._store import (
    FINGERPRINTS,
    FeatureStore,
    Fingerprints,
    sorted_fingerprints,
)


@dataclass(frozen=True)
class PassExecutor:
    """The points of this rank, the ranks it works with, its checkpoint if any.

    Parameters
    ----------
    source : FeatureStore
    group : ProcessGroup
    checkpoint : Checkpoint or None
    progress : bool
        Whether passes that take longer than a few seconds show a bar.
    """

    source: FeatureStore
    group: ProcessGroup
    checkpoint: Checkpoint | None = None
    progress: bool = False

    def execute(self, schedule: PassSchedule[Curvature]) -> Curvature:
        """Run one pass after the other, each over the points of all ranks."""
        finished, on_all = None, self.group.run_on_all_ranks
        for number in count():
            task, curvature = on_all(partial(next_pass, schedule, finished))
            if task is None:
                break
            finished = self.collect(number, task)
        assert curvature is not None
        return curvature

    def collect(self, number: int, task: Pass) -> Statistics:
        """Return the finished statistics of one pass: of the checkpoint, or of a reading."""
        on_all = self.group.run_on_all_ranks
        self.group.share(task.shared())
        stored = on_all(lambda: self._from_checkpoint(number, task))
        if all(self.group.gather(stored is not None)):
            assert stored is not None
            return stored.to(self.source.device)
        merged = self.group.merged(on_all(lambda: self._read(number, task)), task.classes)
        return on_all(lambda: self._finish(number, task, merged))

    def _from_checkpoint(self, number: int, task: Pass) -> Statistics | None:
        return None if self.checkpoint is None else self.checkpoint.finished(number, task)

    def _read(self, number: int, task: Pass) -> Statistics:
        label = f"Pass {number + 1}"
        with tqdm(total=len(self.source), desc=label, delay=2, disable=not self.progress) as bar:
            return task.collect(self.source, bar.update)

    def _finish(self, number: int, task: Pass, merged: Statistics) -> Statistics:
        task.audit(merged)
        finished = task.finish(merged)
        if self.checkpoint is not None:
            self.checkpoint.keep(number, finished)
        return finished

    @property
    def n_points(self) -> int:
        """Number of points of all ranks."""
        return sum(self.group.gather(len(self.source)))

    def columns(
        self, loss: ContrastiveLoss, structure: str, options: FitOptions
    ) -> list[FeatureStore]:
        """Return the columns of a finite margin: points of all ranks, held by each."""
        reference, group = options.reference, self.group
        if not loss.negatives_by_pair:
            return []
        if reference is None and group.n == 1:
            return [self.source]
        sizes = group.gather(len(self.source))

        def draw() -> list[Tensor]:
            if reference is None:
                return [torch.arange(sum(sizes))]
            return column_groups(sum(sizes), structure, reference, options.generator)

        drawing = draw if self.checkpoint is None else partial(self.checkpoint.columns, draw)
        groups = group.gather(group.run_on_all_ranks(drawing))[0]
        first = sum(sizes[: group.index])
        return [self._gathered(index - first) for index in groups]

    def _gathered(self, index: Tensor) -> FeatureStore:
        """Return the points at ``index``, counted from this rank's first, of any rank."""
        on_all, source = self.group.run_on_all_ranks, self.source

        def local() -> tuple[Tensor, Tensor] | None:
            mine = index[(index >= 0) & (index < len(source))]
            return (source.rows(mine).cpu(), source.labels.cpu()[mine]) if len(mine) else None

        def joined() -> FeatureStore:
            features, labels = map(torch.cat, zip(*parts, strict=True))
            return FeatureStore.of(features.to(source.device), labels.to(source.device))

        parts = [part for part in self.group.gather(on_all(local)) if part is not None]
        return on_all(joined)


SAME = 1e-2
"""Relative difference of features that only rounding explains, on any device."""

FirstBatch = tuple[Any, Tensor]


def fit_with_runtime(
    model: nn.Module,
    head: nn.Module | str | None,
    loader: Iterable[Any],
    settings: Settings,
    options: FitOptions,
) -> Fitted:
    """See ``LaplaceEmbedder.fit``: ``distributed``, ``checkpoint_dir``."""
    group = ProcessGroup(distributed=options.distributed)
    on_all = group.run_on_all_ranks
    if group.n > 1:
        group.agree(on_all(lambda: fingerprint(model, settings, options)))
    progress = options.progress and group.index == 0
    batches = labelled_batches(loader, device_of(model), progress=progress, description="Fitting")
    first = on_all(lambda: _first_batch(batches, or_none=group.n > 1))
    located, features = agreed_head(model, head, first, group)
    backend, n_outputs = settings.backend, located.n_outputs
    jacobian = on_all(lambda: jacobian_of(located.module, n_outputs, backend))
    settings, loss = settings.for_head(jacobian), settings.loss(normalized=located.normalized)
    with ExitStack() as closing:
        exact = on_all(lambda: in_dtype(options.precision, located, settings))
        identity = partial(_identity, model, located, settings, options)
        checkpoint = open_checkpoint(identity, options, group)
        if checkpoint is not None:
            closing.callback(checkpoint.close)

        def opened() -> FeatureStore:
            device = device_of(model)
            if checkpoint is None:
                return FeatureStore(options.memory_bytes, dtype=options.precision, device=device)
            return checkpoint.store(device, options.precision)

        store = on_all(lambda: closing.enter_context(opened()))
        all_batches = batches if first is None else chain([first], batches)
        on_all(lambda: _collect(model, located, all_batches, features, store, checkpoint))
        closing.enter_context(full_precision())  # the model may run under autocast, the sums not
        on_all(lambda: check_memory(settings.structure, exact.layouts, store.device))
        executor = PassExecutor(store, group, checkpoint, progress)
        columns = executor.columns(loss, settings.structure, options)
        schedule = curvature_passes(exact, loss, settings.structure, columns)
        curvature, n_points = executor.execute(schedule), executor.n_points
        fingerprints = _gathered(group, store)
        fitted = posterior_of(located, jacobian, curvature, n_points, loss, settings, fingerprints)
        return with_near_far(fitted, store) if group.n == 1 else fitted


def _gathered(group: ProcessGroup, store: FeatureStore) -> Fingerprints | None:
    """Gather the fingerprints of all ranks; None for too many."""
    n_points = sum(group.gather(len(store)))
    if n_points > FINGERPRINTS:
        return None
    parts = group.gather(group.run_on_all_ranks(store.fingerprints))
    return sorted_fingerprints([part for part in parts if part is not None])


def _first_batch(batches: Batches, *, or_none: bool) -> FirstBatch | None:
    try:
        return next(batches)
    except EmptyLoaderError:
        if or_none:
            return None
        raise


def agreed_head(
    model: nn.Module,
    head: nn.Module | str | None,
    first: FirstBatch | None,
    group: ProcessGroup,
) -> tuple[LocatedHead, Tensor | None]:
    """The head and what enters it on the first batch; a rank without one takes another's spec.

    Raises
    ------
    EmptyLoaderError
        If no rank has a batch.
    ShardError
        If a rank has no such head, or other weights in it.
    """

    def locate() -> tuple[LocatedHead, Tensor] | None:
        if first is None:
            return None
        located, activations = locate_head(model, first[0], head)
        return located, at_least_float32(activations.features)

    mine = group.run_on_all_ranks(locate)
    if mine is not None and group.n == 1:
        return mine
    specs = group.gather(None if mine is None else head_spec(mine[0]))
    expected = next((spec for spec in specs if spec is not None), None)
    if expected is None:
        raise EmptyLoaderError("no rank's loader yielded a batch: pass loaders with data.")
    group.agree(expected if mine is None else head_spec(mine[0]))
    return group.run_on_all_ranks(lambda: mine or (head_from_spec(expected, model), None))


def _collect(
    model: nn.Module,
    head: LocatedHead,
    batches: Batches,
    features: Tensor | None,
    store: FeatureStore,
    checkpoint: Checkpoint | None,
) -> None:
    """Run the model over the batches that the store does not hold yet.

    Parameters
    ----------
    features : Tensor [B, D] or None
        What enters the head on the first batch, if there is one.

    Raises
    ------
    InputError
        If the loader's batches are not those that the store was filled with.
    """
    complete = store.exhausted
    unread = _unread(model, head, batches, features, store)
    for number, (h, labels) in enumerate(unread):
        store.append(h, labels, where=where(number))
        if checkpoint is not None and checkpoint.due():
            store.commit()
    if not complete:
        store.complete()


def _unread(
    model: nn.Module,
    head: LocatedHead,
    batches: Batches,
    features: Tensor | None,
    store: FeatureStore,
) -> HeadBatches:
    """Yield h and labels of the batches behind those that the store holds.

    Those that it holds are compared by their labels, and the last of them by its features. Of a
    store that has all batches, the first one is compared, and the rest is not read.

    Raises
    ------
    InputError
        If they differ.
    """
    known, complete = store.labels.cpu() if len(store) else torch.empty(0), store.exhausted
    n_read = 0
    for inputs, labels in batches:
        start, n_read = n_read, n_read + len(labels)
        new = start >= len(known) and not complete
        h, features = features, None  # of the first batch it is there already
        if h is None and (new or n_read == len(known)):
            h = at_least_float32(capture(model, head, inputs).features)
        if new:
            assert h is not None
            yield h, labels
            continue
        same = torch.equal(known[start:n_read], labels.cpu())
        if same and h is not None and (complete or n_read == len(known)):
            same = _same_features(store, slice(start, n_read), h)
        if not same:
            raise InputError(_other_batches(n_read))
        if complete:
            return
    if n_read < len(known):
        raise InputError(_other_batches(n_read))


def _same_features(store: FeatureStore, part: slice, features: Tensor) -> bool:
    stored = store.rows(torch.arange(part.start, part.stop)).to(features)
    return float((stored - features).norm()) <= SAME * float(features.norm())


def _other_batches(n_read: int) -> str:
    return (
        f"the loader's batches differ from those in checkpoint_dir (up to point {n_read}): resume "
        "with the same data in the same order and batch size (shuffle=False, or the same seed), "
        "or choose an empty folder."
    )


def fingerprint(model: nn.Module, settings: Settings, options: FitOptions) -> dict[str, Any]:
    """Hash everything that every rank must have alike."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    weights = digest(f"{model} {list(state)}", list(state.values()))
    sums = {"precision": str(options.precision), "reference": options.reference}
    return {**settings.to_json(), **sums, "model": weights, "version": __version__}


def _identity(
    model: nn.Module, head: LocatedHead, settings: Settings, options: FitOptions
) -> dict[str, Any]:
    """Return the identity of a checkpoint; its sums do not depend on the prior."""
    source = None if options.reference is None else as_generator(options.generator)
    state = [] if source is None else [source.get_state()]
    content = fingerprint(model, settings, options)
    for name in ("prior_precision", "n_effective", "positivity"):
        content.pop(name)
    return {**content, "head": head_spec(head), "generator": digest("", state)}
