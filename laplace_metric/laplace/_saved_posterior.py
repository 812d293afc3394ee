"""A fitted posterior as JSON and arrays of a file, and back onto a model with the same head."""

from __future__ import annotations

from dataclasses import replace
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
from laplace_metric.io import UNIT, Fields, Kind, Part, below, checked_array, record, restored
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace.fit._settings import Settings
from laplace_metric.models import Precomputed

POSTERIOR = Kind("posterior", "a saved posterior", 4)
NEAR_FAR = "near_far."
"""Begins the names of tensors that are of ``NearFar``."""


def posterior_part(settings: Settings, fitted: Fitted) -> Part:
    """Return everything but the model; the head is kept as a fingerprint of its weights."""
    posterior = fitted.posterior
    content: dict[str, Any] = {
        "settings": settings.to_json(),
        "clipped_fraction": posterior.curvature.negative_fraction,
        "head": head_spec(fitted.head),
        "body": None if fitted.body is None else fitted.body.to_json(),
    }
    arrays: dict[str, Any] = _basis_tensors(posterior)
    for value in (fitted, posterior, posterior.curvature):
        numbers, own = record(value)
        content |= numbers
        arrays |= own
    if fitted.near_far is not None:
        arrays |= {NEAR_FAR + name: t for name, t in fitted.near_far.tensors().items()}
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
    mean, n_parameters = jacobian.parameters, jacobian.n_parameters
    given: dict[str, Any] = {
        "basis": _basis(tensors, settings.structure, jacobian),
        "negative_fraction": content.number("clipped_fraction", least=0, most=1),
    }
    curvature = restored(SpectralCurvature, content, tensors, given=given, P=n_parameters)
    older = {"prior_precision": settings.prior_precision, "temperature": settings.temperature}
    numbers = Fields({**older, **part.content}, "posterior")
    given = {"mean": mean, "curvature": curvature.to(mean.device)}
    posterior = restored(Posterior, numbers, tensors, given=given, P=n_parameters)
    if posterior.prior_weights is not None:
        posterior = replace(posterior, prior_weights=posterior.prior_weights.to(mean.device))
    given = {
        "head": head,
        "jacobian": jacobian,
        "loss": settings.loss(normalized=head.normalized),
        "posterior": posterior,
        "structure": settings.structure,
        "body": body,
    }
    if points := below(NEAR_FAR, tensors):
        where = Fields({}, "posterior/near_far")
        given["near_far"] = restored(NearFar, where, points).to(mean.device)
    return settings, restored(Fitted, content, tensors, given=given)


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
