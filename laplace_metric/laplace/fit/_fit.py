"""A fit, in four phases.

    agreed_head(model, head, inputs)    which layer, Z, whether the model l2-normalises after it
    collect_points(model, ...)          h [N, D] and labels [N]: the model runs over each point once
    HeadFit.passes(columns)             H = sum_ij y_ij J^T d2l J, an average over pairs
    HeadFit.posterior(H, N)             N(theta, T (n_eff H + tau I)^-1)

Which processes run them and where points and finished passes are kept are values: ``Processes``
(this one, or the ranks of a group) and ``FitStorage`` (in memory, or a checkpoint). ``scale.Plan``
hands the passes out as tasks.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import curvature_passes
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.curvature._passes import PassSchedule
from laplace_metric.curvature._spectral_curvature import (
    NEGATIVE_SHARE,
    SpectralCurvature,
    check_finite_curvature,
)
from laplace_metric.curvature._structures import Curvature, KronCurvature, check_memory
from laplace_metric.errors import (
    DegenerateCurvatureWarning,
    InputError,
    LabelError,
    NegativeCurvatureWarning,
    callers_line,
)
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._capture import capture
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._locate import is_identity
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._not_classes import check_noise, warn_if_all_differ
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace._class_reach import class_reach
from laplace_metric.laplace._draws import NUMBERS, POINTS, DrawnPoints
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._new_points import as_new_points_see, n_terms
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._prior_precision import (
    FLAT,
    of_layers,
    of_one_observation,
    of_trained_weights,
)
from laplace_metric.laplace._temperature import temperature_of, without_points
from laplace_metric.laplace.fit._available import warn_if_limited
from laplace_metric.laplace.fit._executor import PassExecutor
from laplace_metric.laplace.fit._fit_options import FitOptions, Whole
from laplace_metric.laplace.fit._fit_storage import FitStorage, InMemory, fit_identity
from laplace_metric.laplace.fit._points import Batches, HeadBatches, collect_points, where
from laplace_metric.laplace.fit._processes import ONE_PROCESS, Processes, agreed_head, first_batch
from laplace_metric.laplace.fit._settings import LAYERWISE, Settings
from laplace_metric.laplace.fit._spanned import SpannedSpace, has_few_points
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._compared_rows import compared_points
from laplace_metric.models._feature_checks import check_finite, check_shapes
from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.models._modules import device_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadFit:
    """The fit of one head, wherever its points are: the passes to sum, and the posterior of H.

    Parameters
    ----------
    located : LocatedHead
        The head in its model.
    jacobian : HeadJacobian
        Jacobian of the head, in the dtype of its weights.
    exact : HeadJacobian
        Jacobian of the head, in the dtype of the sums over points.
    loss : ContrastiveLoss
        Loss whose curvature is summed; it knows if the model normalises behind the head.
    settings : Settings
        Settings of the posterior, in which "auto" is replaced by the structure that it chose.
    """

    located: LocatedHead
    jacobian: HeadJacobian
    exact: HeadJacobian
    loss: ContrastiveLoss
    settings: Settings

    @classmethod
    def of(
        cls, located: LocatedHead, settings: Settings, dtype: torch.dtype | None = None
    ) -> HeadFit:
        """Decide the structure and the types.

        Parameters
        ----------
        located : LocatedHead
            The head in its model.
        settings : Settings
            Settings of the posterior as the user gave them, "auto" included.
        dtype : torch.dtype, optional
            Dtype of the sums over points. None, the default: the dtype of the weights.

        Raises
        ------
        InputError
            If ``dtype`` is not floating-point.
        """
        jacobian = jacobian_of(located.module, located.n_outputs, settings.backend)
        settings, loss = settings.for_head(jacobian), settings.loss(normalized=located.normalized)
        exact = jacobian if dtype is None else in_dtype(dtype, located, settings)
        if isinstance(exact, LinearJacobian) and is_identity(located.module):
            exact = replace(exact, identity=True)
        return cls(located, jacobian, exact, loss, settings)

    def passes(self, columns: Sequence[FeatureStore] = ()) -> PassSchedule[Curvature]:
        """Return the schedule of passes over the points that ends in H.

        Parameters
        ----------
        columns : list of FeatureStore
            Groups of points among which in-margin negatives are searched. Empty unless the margin
            is finite.
        """
        return curvature_passes(self.exact, self.loss, self.settings.structure, columns)

    def posterior(
        self, curvature: Curvature, n_points: int, fingerprints: Fingerprints | None = None
    ) -> Fitted:
        """Return the posterior of the summed curvature; see ``posterior_of``.

        Its eigenvectors are in the type of the sums: those of float32 are held once, as curvature
        and as posterior.
        """
        located, jacobian, loss = self.located, self.jacobian, self.loss
        fitted = posterior_of(
            located, jacobian, curvature, n_points, loss, self.settings, fingerprints
        )
        seen = fitted.posterior.curvature
        held = replace(seen, basis=seen.basis.to(self.exact.parameters))
        return replace(fitted, posterior=replace(fitted.posterior, curvature=held))


StorageOf = Callable[[HeadFit], FitStorage]
"""Opens the storage of a fit once its head is known."""


def fit_posterior(
    model: nn.Module,
    head: nn.Module | str | None,
    inputs: Inputs,
    settings: Settings,
    options: FitOptions,
    processes: Processes = ONE_PROCESS,
    storage_of: StorageOf | None = None,
) -> Fitted:
    """Fit ``settings`` to labelled inputs; the model runs over them once.

    Parameters
    ----------
    model : nn.Module
        Embedder whose head gets the posterior: inputs -> embeddings [B, Z].
    head : module, name or None
        Layer that gets the posterior, as ``LaplaceEmbedder`` documents.
    inputs : Inputs
        Labelled inputs of this process.
    settings : Settings
        Settings of the posterior, the same in every process.
    options : FitOptions
        Options of this fit, such as the size of the memory and the progress bar.
    processes : Processes
        The processes that fit together. Default: one process alone.
    storage_of : function, optional
        Function that opens the storage of points and passes. None, the default: in memory.

    Raises
    ------
    HeadError, LabelError, NonFiniteError, EmptyLoaderError, ShardError
        See ``LaplaceEmbedder.fit``.
    InputError
        For embeddings without a direction; it names their rows.
    """
    on_all, device = processes.run_on_all, device_of(model)
    processes.agree(lambda: fit_identity(model, settings, options))
    progress = options.progress and processes.index == 0
    batches = labelled_batches(inputs, device, progress=progress, description="Fitting")
    first = on_all(lambda: first_batch(batches, or_none=processes.n > 1))
    located, features = agreed_head(model, head, first, processes)
    fit = on_all(lambda: HeadFit.of(located, settings, options.dtype))
    batches = batches if first is None else chain([first], batches)
    if settings.pairs != "all":
        return _fit_by_batches(model, fit, batches, features)
    with ExitStack() as closing:
        storage = InMemory(options.memory_bytes) if storage_of is None else storage_of(fit)
        closing.callback(storage.close)
        store = on_all(lambda: closing.enter_context(storage.store(device, options.dtype)))
        on_all(lambda: collect_points(model, located, batches, features, store, storage))
        labels = store.labels.cpu().numpy()
        on_all(lambda: check_noise("labels", labels))
        if processes.n == 1:
            warn_if_all_differ(labels)
        closing.enter_context(full_precision())  # the model may run under autocast, the sums not
        structure = fit.settings.structure
        on_all(lambda: check_memory(structure, fit.exact.layouts, store.device))
        executor = PassExecutor(store, processes, storage, progress)
        alone = options.whole is None and processes.n == 1
        few = has_few_points(fit.jacobian, structure, executor.n_points)
        try:
            if alone and few and not storage.survives:
                fitted = _in_spanned_space(fit, executor, options)
            else:
                curvature = _summed(fit, executor, options)
                fitted = fit.posterior(curvature, executor.n_points, executor.fingerprints)
                if alone:
                    rows = _compared(store, located)
                    fitted = _with_chosen_temperature(fitted, fitted, store, rows, settings)
        except InputError:
            if fit.loss.geometry.spherical:
                _check_directions(store, fit.jacobian)
            raise
        wanted = processes.n == 1 and (options.whole is None or options.whole.near_far)
        return with_near_far(fitted, store, options.whole) if wanted else fitted


def _summed(fit: HeadFit, executor: PassExecutor, options: FitOptions) -> Curvature:
    """Return the curvature of the head, summed over the points of all processes."""
    columns = executor.columns(fit.loss, fit.settings.structure, options)
    return executor.execute(fit.passes(columns))


def _in_spanned_space(fit: HeadFit, executor: PassExecutor, options: FitOptions) -> Fitted:
    """Fit to points fewer than the inputs of the head, in the space that they span."""
    head, store = fit.jacobian, executor.source
    assert isinstance(head, LinearJacobian)
    space = SpannedSpace.of(head, store.rows(torch.arange(len(store), device=store.device)))
    located = replace(fit.located, module=space.module())
    inside = HeadFit.of(located, fit.settings, options.dtype)
    executor_inside = replace(executor, source=space.store(store))
    curvature = _summed(inside, executor_inside, options)
    assert isinstance(curvature, KronCurvature)
    fitted = fit.posterior(space.lifted(curvature), executor.n_points, executor.fingerprints)
    drawn = space.reduced(fitted, inside.jacobian, curvature, fit.settings.positivity)
    rows = _compared(store, fit.located)
    return _with_chosen_temperature(fitted, drawn, executor_inside.source, rows, fit.settings)


def _with_chosen_temperature(
    fitted: Fitted, drawn: Fitted, store: FeatureStore, rows: Tensor, settings: Settings
) -> Fitted:
    """Choose the temperature and record how well draws at it retrieve new points.

    ``drawn`` is the same fit as ``store`` sees it, whose points may be coordinates of a subspace.
    ``rows`` [n] are compared.
    """
    if not len(rows):
        return fitted
    h, labels = store.rows(rows), store.labels[rows]
    terms, temperature = n_terms(store.labels, drawn.loss), fitted.posterior.temperature
    if isinstance(settings.temperature, str):
        head = drawn.jacobian

        def embedded(rows: Tensor) -> Tensor:
            return rows if is_identity(drawn.head.module) else head.forward(rows.to(head.dtype))

        reach = class_reach(embedded, h, labels, store.blocks(), spherical=drawn.spherical)
        if reach > 0:
            temperature = temperature_of(drawn, h, labels, terms, reach)
    posterior = as_new_points_see(drawn.posterior, terms, drawn.head.n_outputs - drawn.spherical)
    as_new = replace(drawn, posterior=posterior).with_temperature(temperature)
    draws = DrawnPoints.of(as_new, h, labels).quality()
    return replace(fitted.with_temperature(temperature), draws=draws)


def _compared(store: FeatureStore, head: LocatedHead) -> Tensor:
    """Return the rows [n] under which draws of the head are compared: fewer of wide embeddings."""
    least, most = POINTS
    return compared_points(store, max(least, min(most, NUMBERS // head.n_outputs)))


def _check_directions(store: FeatureStore, head: HeadJacobian) -> None:
    """Raise an error that names the rows whose embedding has no direction, if there are any."""
    for block in store.blocks():
        with rows_before(block.start):
            check_rows(head.forward(block.features), spherical=True)


def _fit_by_batches(
    model: nn.Module, fit: HeadFit, batches: Batches, features: Tensor | None
) -> Fitted:
    """Fit pairs that each batch has for itself; ``features`` enter the head on the first batch."""

    def head_batches() -> HeadBatches:
        h, n_read = features, 0
        for inputs, labels in batches:
            with rows_before(n_read):
                seen = capture(model, fit.located, inputs).features if h is None else h
            yield seen, labels
            h, n_read = None, n_read + len(labels)

    curvature, n_points = minibatch_curvature(head_batches(), fit.jacobian, fit.loss, fit.settings)
    return fit.posterior(curvature, n_points)


def in_dtype(dtype: torch.dtype | None, head: LocatedHead, settings: Settings) -> HeadJacobian:
    """Return the head in the dtype of the sums over points; None: as it is.

    Raises
    ------
    InputError
        For what is no floating type.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype={dtype!r}: pass a floating type, such as torch.float64.")
    module = head.module if dtype is None else deepcopy(head.module).to(dtype)
    return jacobian_of(module, head.n_outputs, settings.backend)


def uses_lengths(fitted: Fitted) -> bool:
    """Return False if directions of head inputs are the embeddings themselves.

    Such inputs are compared at any length, as the metric does.
    """
    return not (fitted.spherical and is_identity(fitted.head.module))


def with_near_far(fitted: Fitted, store: FeatureStore, whole: Whole | None = None) -> Fitted:
    """Add what ``Embedding.epistemic`` needs of the fit set, which may be a part of a whole one.

    Warns
    -----
    LimitWarning
        If the head's inputs are too wide for it.
    """
    whole = Whole(store.width, uses_lengths(fitted)) if whole is None else whole
    near_far = NearFar.of(
        store.blocks(),
        store.classes,
        len(store),
        fitted.posterior.mean.dtype,
        use_lengths=whole.use_lengths,
        width=whole.width,
    )
    warn_if_limited(store.width)
    return replace(fitted, near_far=near_far)


def minibatch_curvature(
    batches: HeadBatches, head: HeadJacobian, loss: ContrastiveLoss, settings: Settings
) -> tuple[Curvature, int]:
    """Average each batch's own pair curvature over batches, weighted by their points.

    Raises
    ------
    LabelError
        Names the batch in which nothing is contrasted.
    """
    n_points, total = 0, None
    for number, (h, labels) in enumerate(batches):
        h = at_least_float32(h)
        check_shapes(h, labels, where=where(number))
        with rows_before(n_points):
            check_finite(h, where=where(number))
        if loss.geometry.spherical:
            with rows_before(n_points):
                check_rows(head.forward(h), spherical=True)
        try:
            value = _one_batch(h, labels, head, loss, settings).scaled(len(labels))
        except LabelError as error:
            raise LabelError(f"loader batch {number}: {error}") from error
        n_points, total = n_points + len(labels), value if total is None else total + value
    assert total is not None
    return total.scaled(1 / n_points), n_points


@full_precision()
def _one_batch(
    h: Tensor, labels: Tensor, head: HeadJacobian, loss: ContrastiveLoss, settings: Settings
) -> Any:
    structure = settings.structure
    if not callable(settings.pairs):
        return batch_curvature(h, head, loss, structure, labels=labels)
    indices = settings.pairs(head.forward(h), labels)
    if indices is None:
        raise InputError("pairs gave None: a miner returns 3 or 4 tensors of indices.")
    return batch_curvature(h, head, loss, structure, indices_tuple=indices)


def posterior_of(
    head: LocatedHead,
    jacobian: HeadJacobian,
    curvature: Curvature,
    n_points: int,
    loss: ContrastiveLoss,
    settings: Settings,
    fingerprints: Fingerprints | None = None,
) -> Fitted:
    """Return ``N(theta, T (n_eff H + tau W)^-1)``; warn if H is zero or much of it is negative.

    A temperature that is to be chosen is ``without_points`` here; fits that keep points go on.

    Warns
    -----
    DegenerateCurvatureWarning
        If H is zero up to rounding, or nearly.
    NegativeCurvatureWarning
        If a share of at least ``NEGATIVE_SHARE`` was negative and counts by its size.

    Raises
    ------
    NonFiniteError
        If a precision overflows in the type of the weights.
    """
    n_effective = float(n_points) if settings.n_effective is None else settings.n_effective
    mean, spectral = jacobian.parameters, curvature.decompose(settings.positivity)
    check_finite_curvature((n_effective * spectral.eigenvalues).to(mean.dtype))
    prior, of_layer, predictive_prior = settings.prior_precision, None, None
    if isinstance(prior, str):
        # what imbalance leaves of a loss that vanishes is no information
        known = torch.zeros_like(spectral.eigenvalues) if loss.vanishes else spectral.eigenvalues
        if prior == LAYERWISE:
            of_layer = of_layers(mean, known, n_effective, jacobian.layouts)
        prior = of_one_observation(mean, known, n_effective)
        predictive_prior = of_trained_weights(mean) if jacobian.linear else None
    temperature = settings.temperature
    if isinstance(temperature, str):
        temperature = without_points(prior, mean)
    posterior = Posterior(mean, spectral, n_effective, prior, temperature, of_layer)
    _LOG.debug(
        "head %r: %.1f %% of the curvature was negative (positivity=%r), n_effective=%.6g",
        *(head.name, 100 * spectral.negative_fraction, settings.positivity, n_effective),
    )
    if not warn_if_degenerate(loss, posterior):
        warn_if_negative(spectral, settings.positivity)
    return Fitted(
        head,
        jacobian,
        loss,
        posterior,
        n_points,
        settings.structure,
        fingerprints,
        predictive_prior=predictive_prior,
    )


def warn_if_negative(
    curvature: SpectralCurvature,
    positivity: str,
    meaning: str = "this posterior is a ranking heuristic, not an approximation",
) -> None:
    """Warn when much of a curvature that counts by its size was negative."""
    share = curvature.negative_fraction
    if positivity != "absolute" or share < NEGATIVE_SHARE:
        return
    warnings.warn(
        f"{share:.0%} of the curvature was negative, and positivity='absolute' counts it by its "
        f"size: {meaning}. Balance the classes, use hessian='positives' with distance='euclidean' "
        "(never negative), or positivity='clip', which leaves those directions to the prior.",
        NegativeCurvatureWarning,
        stacklevel=callers_line(),
    )


def warn_if_degenerate(loss: ContrastiveLoss, posterior: Posterior) -> bool:
    """Warn when the curvature says nothing, so that the posterior is nearly the prior.

    Then a prior precision that was not given is that of the trained weights.
    """
    curvature = posterior.curvature
    largest = float(curvature.eigenvalues.max())
    if loss.vanishes:
        reason = (
            "hessian='fixed' with distance='euclidean' and no finite margin sums to zero for "
            "balanced classes, whatever the data"
        )
    elif posterior.n_effective * largest < FLAT * posterior.prior_precision:
        negative = curvature.negative_fraction
        reason = f"its largest eigenvalue is {largest:.2g}"
        if negative > 0:
            reason = f"{negative:.0%} of it was negative"
    else:
        return False
    warnings.warn(
        f"the curvature is degenerate, so the posterior is close to the prior: {reason}. Use "
        "distance='arccos', hessian='positives', or a finite margin that some negative pairs are "
        "outside of.",
        DegenerateCurvatureWarning,
        stacklevel=callers_line(),
    )
    return True
