"""A fit in four phases, each a function of values that can be called on its own.

    locate_head(model, inputs)             which layer, Z, whether the model l2-normalises after it
    store.append(h, labels)                h [N, D] and labels [N]: the model runs once over each
    all_pairs_curvature(store, ...)        H = sum_ij y_ij J^T d2l J, an average over pairs
    posterior_of(head, H, ...)             N(theta, (n_eff H + tau I)^-1)

Several processes and checkpoints wrap these phases (``runtime``); here none of that runs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.randomness import at_least_float32, full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._ggn import all_pairs_curvature, batch_curvature
from laplace_metric.curvature._structures import (
    NEGATIVE_SHARE,
    Curvature,
    SpectralCurvature,
    check_finite_curvature,
)
from laplace_metric.errors import (
    DegenerateCurvatureWarning,
    InputError,
    LabelError,
    NegativeCurvatureWarning,
    callers_line,
)
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import LocatedHead, capture, is_identity, locate_head
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._settings import FitOptions, Settings
from laplace_metric.models._calling import Inputs, device_of, labelled_batches
from laplace_metric.models._reading import check_finite, check_shapes
from laplace_metric.models._store import FeatureStore, Fingerprints

_LOG = logging.getLogger(__name__)
Batches = Iterator[tuple[Inputs, Tensor]]
HeadBatches = Iterator[tuple[Tensor, Tensor]]
"""h [B, D] and labels [B] of one batch after the other."""


def fit_posterior(
    model: nn.Module,
    head: nn.Module | str | None,
    loader: Iterable[Any],
    settings: Settings,
    options: FitOptions,
) -> Fitted:
    """Fit ``settings`` to a loader of ``(inputs, labels)``; the model runs over it once."""
    progress, dtype, device = options.progress, options.precision, device_of(model)
    batches = labelled_batches(loader, device, progress=progress, description="Fitting")
    inputs, labels = next(batches)
    located, activations = locate_head(model, inputs, head)
    jacobian = jacobian_of(located.module, located.n_outputs, settings.backend)
    settings, loss = settings.for_head(jacobian), settings.loss(normalized=located.normalized)
    others = ((capture(model, located, x).features, y) for x, y in batches)
    head_batches = chain([(activations.features, labels)], others)
    if settings.pairs != "all":
        curvature, n_points = minibatch_curvature(head_batches, jacobian, loss, settings)
        return posterior_of(located, jacobian, curvature, n_points, loss, settings)
    with FeatureStore(options.memory_bytes, dtype=dtype, device=device) as store:
        for number, (features, labels) in enumerate(head_batches):
            store.append(features, labels, where=where(number))
        store.complete()
        with full_precision():  # the model may run under autocast, the sums not
            curvature = all_pairs_curvature(
                store,
                jacobian if dtype is None else in_dtype(dtype, located, settings),
                loss,
                settings.structure,
                reference=options.reference,
                generator=options.generator,
                progress=progress,
            )
        fitted = posterior_of(
            located, jacobian, curvature, len(store), loss, settings, store.fingerprints()
        )
        return with_near_far(fitted, store)


def where(number: int) -> str:
    """Return the name of a batch's features in errors."""
    return f"the head's input in loader batch {number}"


def in_dtype(dtype: torch.dtype | None, head: LocatedHead, settings: Settings) -> HeadJacobian:
    """The head in the type of the sums over points; None: as it is.

    Raises
    ------
    InputError
        For what is no floating type.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"precision={dtype!r}: pass a floating type, such as torch.float64.")
    module = head.module if dtype is None else deepcopy(head.module).to(dtype)
    return jacobian_of(module, head.n_outputs, settings.backend)


def with_near_far(fitted: Fitted, store: FeatureStore) -> Fitted:
    """Add what ``Embedding.epistemic`` needs of the fit set.

    A direction that is the embedding itself is compared at any length, as the metric does.
    """
    near_far = NearFar.of(
        store.blocks(),
        store.classes,
        len(store),
        fitted.posterior.mean.dtype,
        use_lengths=not (fitted.spherical and is_identity(fitted.head.module)),
    )
    return replace(fitted, near_far=near_far)


def minibatch_curvature(
    batches: HeadBatches, head: HeadJacobian, loss: ContrastiveLoss, settings: Settings
) -> tuple[Curvature, int]:
    """The mean over batches, weighted by their points, of each batch's own pair curvature.

    Raises
    ------
    LabelError
        Names the batch in which nothing is contrasted.
    """
    n_points, total = 0, None
    for number, (h, labels) in enumerate(batches):
        h = at_least_float32(h)
        check_shapes(h, labels, where=where(number))
        check_finite(h, where=where(number))
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
    """``N(theta, (n_eff H + tau I)^-1)``, with a warning if H says nothing or is no posterior's.

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
    posterior = Posterior(mean, spectral, n_effective, settings.prior_precision)
    _LOG.debug(
        "head %r: %.1f %% of the curvature was negative (positivity=%r), n_effective=%.6g",
        *(head.name, 100 * spectral.negative_fraction, settings.positivity, n_effective),
    )
    if not warn_if_degenerate(loss, posterior):
        warn_if_negative(spectral, settings.positivity)
    structure = settings.structure
    return Fitted(head, jacobian, loss, posterior, n_points, structure, fingerprints)


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
    """Warn when the curvature says nothing, so that the posterior is nearly the prior."""
    curvature = posterior.curvature
    largest = float(curvature.eigenvalues.max())
    if loss.vanishes:
        reason = (
            "hessian='fixed' with distance='euclidean' and no finite margin sums to zero for "
            "balanced classes, whatever the data"
        )
    elif posterior.n_effective * largest < 1e-6 * posterior.prior_precision:
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
