"""A fit and what a network gives under it: embeddings, uncertainties, distances.

A fitted posterior as JSON and tensors, and back onto a model with the same head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric._utils.display import Shown
from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.validation import check_function, check_name
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    Eigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.distributions import Covariance, Gaussian, ProjectedNormal
from laplace_metric.distributions._covariance import PendingCovariance
from laplace_metric.embedding import Embedding
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._body import BodyRecord, listed
from laplace_metric.heads._capture import capture
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._located import APPEND, HeadActivations, LocatedHead
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.laplace._embedding_pairs import EmbeddingPairs
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._predictive_covariance import covariance
from laplace_metric.laplace._settings import Settings
from laplace_metric.laplace._squared_distance import Distance, squared_distance
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import (
    Inputs,
    device_of,
    input_batches,
    labelled_batches,
    labels_of,
    to_device,
)
from laplace_metric.models._store import Fingerprints


@dataclass(frozen=True, repr=False)
class Fitted(Shown):
    """Result of a fit.

    Parameters
    ----------
    head : LocatedHead
    jacobian : HeadJacobian
        The head as its Jacobian backend sees it.
    loss : ContrastiveLoss
        What was differentiated.
    posterior : Posterior
    n_points : int
        N.
    structure : str
        "diag", "kron" or "full".
    fingerprints : uint64 [N], sorted, or None
        Of the head's inputs that were fitted; None for streams and beyond five million points.
    near_far : NearFar or None
        What ``Embedding.epistemic`` needs of the fit set; None where its points were not kept.
    trained_on : uint64 [M], sorted, or None
        Fingerprints of the inputs that the model was trained on (``models._trained``); None if
        this package did not train it.
    body : BodyRecord or None
        The model apart from the weights of its head; None: it is not compared.
    """

    head: LocatedHead
    jacobian: HeadJacobian
    loss: ContrastiveLoss
    posterior: Posterior
    n_points: int
    structure: str
    fingerprints: Fingerprints | None = None
    near_far: NearFar | None = None
    trained_on: Fingerprints | None = None
    body: BodyRecord | None = None

    @property
    def spherical(self) -> bool:
        """True if embeddings are directions: arccos, or a model that l2-normalises."""
        return self.loss.geometry.spherical

    def with_precision(self, prior_precision: float, n_effective: float | None = None) -> Fitted:
        """The same fit under another prior precision (and n_effective)."""
        return replace(self, posterior=self.posterior.with_precision(prior_precision, n_effective))


def seen_at_head(model: nn.Module, fitted: Fitted, inputs: Inputs) -> HeadActivations:
    """Run the model once and return what enters its head [B, D] and what leaves it [B, Z]."""
    if isinstance(inputs, Mapping):
        inputs = labels_of(inputs)[0]
    seen = capture(model, fitted.head, to_device(inputs, device_of(model)))
    h, z = at_least_float32(seen.features), at_least_float32(seen.raw)
    return HeadActivations(h, z, seen.output)


def predicted_embedding(h: Tensor, raw: Tensor, fitted: Fitted) -> Embedding:
    """Build the embedding of h and z; it computes its covariance when it is first read."""
    kind, near_far = ProjectedNormal if fitted.spherical else Gaussian, fitted.near_far
    check_rows(raw, spherical=fitted.spherical)
    spread = PendingCovariance(raw.shape, partial(_covariance, h, raw, fitted))
    inputs = None if near_far is None else h
    return Embedding(kind(raw, spread), head_inputs=inputs, near_far=near_far)


@full_precision()
def _covariance(h: Tensor, raw: Tensor, fitted: Fitted) -> Covariance:
    """Compute the covariance of raw embeddings.

    Raises
    ------
    NonFiniteError
        If a variance overflows.
    """
    spread = covariance(fitted.jacobian, fitted.posterior, h)
    trace = spread.trace()
    most = trace / raw.square().sum(-1) if fitted.spherical else trace  # of any variance
    check_rows(raw, most, spherical=fitted.spherical)
    return spread


# Numbers instead of distributions: of a loader, of pairs of inputs, of a validation set.


Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""


def uncertainties_of(
    model: nn.Module, fitted: Fitted, loader: Iterable[Any], *, kind: str, progress: bool
) -> Tensor:
    """Compute one number [N] for each input of a loader: see ``LaplaceEmbedder.uncertainties``.

    Raises
    ------
    UnknownNameError
        For a kind that does not exist.
    """
    check_name("kind", kind, ("uncertainty", "epistemic", "ambiguity"))
    traces, spherical = traces_of(fitted.jacobian, fitted.posterior), fitted.spherical
    device, title = device_of(model), "Uncertainties"
    parts = []
    for inputs in input_batches(loader, device, progress=progress, description=title):
        seen = seen_at_head(model, fitted, inputs)
        if kind != "uncertainty":
            parts.append(getattr(predicted_embedding(seen.features, seen.raw, fitted), kind))
            continue
        with full_precision():
            parts.append(traced(traces, seen.features, seen.raw, spherical=spherical))
            check_rows(seen.raw, parts[-1], spherical=spherical)
    return torch.cat(parts)


@full_precision()
def distance_of(
    a: HeadActivations, b: HeadActivations, fitted: Fitted, *, shared_weights: bool
) -> Distance:
    """Compute the moments of the squared distance between the rows of two batches.

    Raises
    ------
    InputError
        If the batches have different lengths, or rows without a direction.
    """
    if len(a.raw) != len(b.raw):
        raise InputError(f"x has {len(a.raw)} rows and y {len(b.raw)}: pass pairs, row by row.")
    head, posterior, spherical = fitted.jacobian, fitted.posterior, fitted.spherical
    xx, yy = (covariance(head, posterior, side.features) for side in (a, b))
    xy = covariance(head, posterior, a.features, b.features) if shared_weights else None
    pairs = EmbeddingPairs(a.raw, b.raw, xx, yy, xy)
    squared = squared_distance(pairs, spherical=spherical, exact=True)
    check_rows(b.raw, spherical=spherical)
    check_rows(a.raw, squared.mean, squared.variance, spherical=spherical)
    return squared


def validation_score(
    model: nn.Module,
    fitted: Fitted,
    loader: Iterable[Any] | None,
    metric: Metric | None,
    *,
    progress: bool,
) -> Callable[[float, float], float]:
    """Return the function (prior precision, n_effective) -> metric on the inputs of a loader.

    Raises
    ------
    InputError
        Without loader and metric, or if the metric returns no number.
    """
    if loader is None or metric is None:
        raise InputError("method='validation' needs loader= and metric=.")
    check_function("metric", metric, "embedding", "labels")
    device = device_of(model)
    batches = labelled_batches(loader, device, progress=progress, description="Validating")
    pairs = [(seen_at_head(model, fitted, inputs), labels) for inputs, labels in batches]
    activations = HeadActivations.concatenate([seen for seen, _ in pairs])
    target = torch.cat([y for _, y in pairs])

    def score(tau: float, n_effective: float) -> float:
        tuned = fitted.with_precision(tau, n_effective)
        embedding = predicted_embedding(activations.features, activations.raw, tuned)
        value = metric(embedding, target)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"metric gave {value!r:.60}: let it return one number, higher is better."
            ) from error

    return score


# A fitted posterior as JSON and tensors, and back onto a model with the same head.

NEAR_FAR = "near_far."
"""Begins the names of tensors that are of ``NearFar``."""


def save_fitted(folder: Path, settings: Settings, fitted: Fitted) -> None:
    """Write everything but the model; the head is kept as a fingerprint of its weights."""
    posterior = fitted.posterior
    content = {
        "settings": settings.to_json(),
        "n_points": fitted.n_points,
        "n_effective": posterior.n_effective,
        "clipped_fraction": posterior.curvature.negative_fraction,
        "head": head_spec(fitted.head),
        "body": None if fitted.body is None else fitted.body.to_json(),
    }
    tensors = {"eigenvalues": posterior.curvature.eigenvalues, **_basis_tensors(posterior)}
    if posterior.curvature.standard_error is not None:
        tensors["standard_error"] = posterior.curvature.standard_error
    if fitted.near_far is not None:
        tensors |= {NEAR_FAR + name: t for name, t in fitted.near_far.tensors().items()}
    if fitted.fingerprints is not None:
        tensors["fingerprints"] = torch.from_numpy(fitted.fingerprints.view(np.int64))
    if fitted.trained_on is not None:
        tensors["trained_on"] = torch.from_numpy(fitted.trained_on.view(np.int64))
    files.write(folder, content, tensors)


def load_fitted(folder: Path, model: nn.Module) -> tuple[Settings, Fitted]:
    """Read what ``save_fitted`` wrote and check that it belongs to the head of ``model``.

    Raises
    ------
    FileFormatError
        If the file or the head does not fit.
    """
    content, tensors = files.read(folder)
    try:
        settings = Settings.from_json(content["settings"])
        if isinstance(model, Precomputed) and content["head"]["name"] != APPEND:
            raise FileFormatError("this posterior was not saved from embeddings: pass the model.")
        head = head_from_spec(content["head"], model)
        body = _checked_body(content.get("body"), model, head)
        jacobian = jacobian_of(head.module, head.n_outputs, settings.backend)
        _check_shapes(tensors, settings.structure, jacobian)
        curvature = SpectralCurvature(
            _basis(tensors, settings.structure, jacobian),
            tensors["eigenvalues"],
            content["clipped_fraction"],
            tensors.get("standard_error"),
        )
        mean = jacobian.parameters
        tau, n_effective = settings.prior_precision, content["n_effective"]
        kept = {k.removeprefix(NEAR_FAR): t for k, t in tensors.items() if k.startswith(NEAR_FAR)}
        known, trained = tensors.get("fingerprints"), tensors.get("trained_on")
        return settings, Fitted(
            head,
            jacobian,
            settings.loss(normalized=head.normalized),
            Posterior(mean, curvature.to(mean.device), n_effective, tau),
            content["n_points"],
            settings.structure,
            None if known is None else known.numpy().view(np.uint64),
            NearFar.from_tensors(kept).to(mean.device) if kept else None,
            None if trained is None else trained.numpy().view(np.uint64),
            body,
        )
    except files.MALFORMED as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _checked_body(content: Any, model: nn.Module, head: LocatedHead) -> BodyRecord | None:
    """Read what the fit recorded of the model; None of files that hold no record.

    Raises
    ------
    FileFormatError
        If ``model`` is another one.
    """
    if content is None:
        return None
    body = BodyRecord.from_json(content)
    if changes := body.changes(model):
        raise FileFormatError(
            "the model is not the one that the posterior was fitted with, although head "
            f"{head.name!r} is the same: {listed(changes)}. Load the trained weights into the "
            "model first, or fit again."
        )
    return body


def _basis_tensors(posterior: Posterior) -> dict[str, Tensor]:
    basis = posterior.curvature.basis
    if isinstance(basis, DenseEigenbasis):
        return {"vectors": basis.vectors}
    if isinstance(basis, KroneckerEigenbasis):
        sides = {"left": [b.left for b in basis.blocks], "right": [b.right for b in basis.blocks]}
        return {f"{s}.{i}": t for s, matrices in sides.items() for i, t in enumerate(matrices)}
    return {}


def _basis(tensors: dict[str, Tensor], structure: str, jacobian: HeadJacobian) -> Eigenbasis:
    if structure == "diag":
        return IdentityEigenbasis()
    if structure == "full":
        return DenseEigenbasis(tensors["vectors"])
    blocks = [
        KroneckerEigenblock(tensors[f"left.{i}"], tensors[f"right.{i}"], layout)
        for i, layout in enumerate(jacobian.layouts)
    ]
    return KroneckerEigenbasis(tuple(blocks))


def _check_shapes(tensors: dict[str, Tensor], structure: str, jacobian: HeadJacobian) -> None:
    """Raise an error that stands for a damaged file unless the tensors fit the head."""
    shapes: dict[str, tuple[int, ...]] = {"eigenvalues": (jacobian.n_parameters,)}
    if structure == "full":
        shapes["vectors"] = (jacobian.n_parameters,) * 2
    elif structure == "kron":
        for i, layout in enumerate(jacobian.layouts):
            shapes[f"left.{i}"] = (layout.n_outputs,) * 2
            shapes[f"right.{i}"] = (layout.n_columns,) * 2
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name} is {tuple(tensors[name].shape)}, not {shape}")
    for name in ("fingerprints", "trained_on"):
        known = tensors.get(name)
        if known is not None and (known.ndim != 1 or known.dtype != torch.int64):
            raise ValueError(f"{name} are {known.dtype} {tuple(known.shape)}, not int64 [N]")
