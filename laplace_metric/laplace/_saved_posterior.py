"""A fitted posterior as JSON and arrays of a file, and back onto a model with the same head."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from laplace_metric.curvature._eigenbases import (
    DenseEigenbasis,
    Eigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
)
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.errors import FileFormatError
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._body import BodyRecord, listed
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._located import APPEND, LocatedHead
from laplace_metric.io import UNIT, Fields, Kind, Part, checked_array
from laplace_metric.laplace._fitted import Draws, Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._settings import Settings
from laplace_metric.models import Precomputed

POSTERIOR = Kind("posterior", "a saved posterior", 4)
NEAR_FAR = "near_far."
"""Begins the names of tensors that are of ``NearFar``."""
FINGERPRINTS = ("fingerprints", "trained_on")
"""Names of the arrays of fingerprints, which a posterior may lack."""


def posterior_part(settings: Settings, fitted: Fitted) -> Part:
    """Return everything but the model; the head is kept as a fingerprint of its weights."""
    posterior = fitted.posterior
    content = {
        "settings": settings.to_json(),
        "n_points": fitted.n_points,
        "n_effective": posterior.n_effective,
        "prior_precision": posterior.prior_precision,
        "predictive_prior": fitted.predictive_prior,
        "temperature": posterior.temperature,
        "draws": None if fitted.draws is None else asdict(fitted.draws),
        "clipped_fraction": posterior.curvature.negative_fraction,
        "head": head_spec(fitted.head),
        "body": None if fitted.body is None else fitted.body.to_json(),
    }
    tensors = {"eigenvalues": posterior.curvature.eigenvalues, **_basis_tensors(posterior)}
    if posterior.prior_weights is not None:
        tensors["prior_weights"] = posterior.prior_weights
    if posterior.curvature.standard_error is not None:
        tensors["standard_error"] = posterior.curvature.standard_error
    if fitted.near_far is not None:
        tensors |= {NEAR_FAR + name: t for name, t in fitted.near_far.tensors().items()}
    arrays: dict[str, Any] = dict(tensors)
    for name in FINGERPRINTS:
        if getattr(fitted, name) is not None:
            arrays[name] = getattr(fitted, name)
    return Part(POSTERIOR, content, arrays)


def fitted_of_part(part: Part, model: nn.Module) -> tuple[Settings, Fitted]:
    """Restore what ``posterior_part`` returned, if it belongs to the head of ``model``.

    Raises
    ------
    FileFormatError
        If a value or the head does not fit; or of ``io.MALFORMED``.
    """
    content, tensors = Fields(part.content, "posterior"), part.arrays
    settings = Settings.from_json(content.inner("settings").content)
    spec = content.inner("head")
    if isinstance(model, Precomputed) and spec.text("name") != APPEND:
        raise FileFormatError("this posterior was not saved from embeddings: pass the model.")
    head = head_from_spec(spec.content, model)
    body = _checked_body(content.inner("body"), model, head)
    jacobian = jacobian_of(head.module, head.n_outputs, settings.backend)
    curvature = SpectralCurvature(
        _basis(tensors, settings.structure, jacobian),
        _vector("eigenvalues", tensors, jacobian),
        content.number("clipped_fraction", least=0, most=1),
        None if "standard_error" not in tensors else _vector("standard_error", tensors, jacobian),
    )
    mean = jacobian.parameters
    stored = NEAR_FAR
    for name in FINGERPRINTS:
        if name in tensors:
            checked_array(f"posterior/{name}", tensors[name], [None], dtype="uint64")
    fingerprints, trained_on = (
        tensors[name].numpy() if name in tensors else None for name in FINGERPRINTS
    )
    kept = {k.removeprefix(stored): t for k, t in tensors.items() if k.startswith(stored)}
    older = {"prior_precision": settings.prior_precision, "temperature": settings.temperature}
    n_effective, prior_precision, temperature = (
        Fields({**older, **part.content}, "posterior").number(name, least=0)
        for name in ("n_effective", "prior_precision", "temperature")
    )
    weights = None
    if "prior_weights" in tensors:
        weights = _vector("prior_weights", tensors, jacobian).to(mean.device)
        if not float(weights.min()) > 0:
            raise FileFormatError("posterior/prior_weights are not all above 0")
    return settings, Fitted(
        head,
        jacobian,
        settings.loss(normalized=head.normalized),
        Posterior(
            mean, curvature.to(mean.device), n_effective, prior_precision, temperature, weights
        ),
        content.whole("n_points"),
        settings.structure,
        fingerprints,
        NearFar.from_tensors(kept, f"posterior/{stored}").to(mean.device) if kept else None,
        trained_on,
        body,
        _draws(content.inner("draws")) if "draws" in content else None,
        content.number("predictive_prior") if "predictive_prior" in content else None,
    )


def _draws(content: Fields) -> Draws:
    recalls = (content.number(name, least=0, most=1) for name in ("recall", "recall_of_means"))
    return Draws(content.number("spread", least=0), *recalls)


def _checked_body(content: Fields, model: nn.Module, head: LocatedHead) -> BodyRecord:
    """Read what the fit recorded of the model.

    Raises
    ------
    FileFormatError
        If ``model`` is another one.
    """
    body = BodyRecord.from_json(content.content)
    if changes := body.changes(model):
        raise FileFormatError(
            "the model is not the one that the posterior was fitted with, although head "
            f"{head.name!r} is the same: {listed(changes)}. Load the trained weights into the "
            "model first, or fit again."
        )
    return body


def _vector(name: str, tensors: Any, jacobian: HeadJacobian) -> Tensor:
    shape = [jacobian.n_parameters]
    found: Tensor = checked_array(f"posterior/{name}", tensors.get(name), shape, least=0)
    return found


def _basis_tensors(posterior: Posterior) -> dict[str, Tensor]:
    basis = posterior.curvature.basis
    if isinstance(basis, DenseEigenbasis):
        return {"vectors": basis.vectors}
    if isinstance(basis, KroneckerEigenbasis):
        sides = {"left": [b.left for b in basis.blocks], "right": [b.right for b in basis.blocks]}
        return {f"{s}.{i}": t for s, matrices in sides.items() for i, t in enumerate(matrices)}
    return {}


def _basis(tensors: Any, structure: str, jacobian: HeadJacobian) -> Eigenbasis:
    def square(name: str, width: int) -> Tensor:
        found: Tensor = checked_array(
            f"posterior/{name}", tensors.get(name), [width, width], least=-UNIT, most=UNIT
        )
        return found

    if structure == "diag":
        return IdentityEigenbasis()
    if structure == "full":
        return DenseEigenbasis(square("vectors", jacobian.n_parameters))
    blocks = [
        KroneckerEigenblock(
            square(f"left.{i}", layout.n_outputs), square(f"right.{i}", layout.n_columns), layout
        )
        for i, layout in enumerate(jacobian.layouts)
    ]
    return KroneckerEigenbasis(tuple(blocks))
