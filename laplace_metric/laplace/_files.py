"""A fitted posterior as JSON and tensors, and back onto a model with the same head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric.curvature._structures import (
    DenseEigenbasis,
    Eigenbasis,
    IdentityEigenbasis,
    KroneckerEigenbasis,
    KroneckerEigenblock,
    SpectralCurvature,
)
from laplace_metric.errors import FileFormatError
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._locate import APPEND
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._posterior import Posterior
from laplace_metric.laplace._settings import Settings
from laplace_metric.models import Precomputed
from laplace_metric.models._store import Fingerprints

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
    }
    tensors = {"eigenvalues": posterior.curvature.eigenvalues, **_basis_tensors(posterior)}
    if posterior.curvature.standard_error is not None:
        tensors["standard_error"] = posterior.curvature.standard_error
    if fitted.near_far is not None:
        tensors |= {NEAR_FAR + name: t for name, t in fitted.near_far.tensors().items()}
    if fitted.fingerprints is not None:
        tensors["fingerprints"] = torch.from_numpy(fitted.fingerprints.view(np.int64))
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
        _check_from_embeddings(content["head"]["name"], model)
        head = head_from_spec(content["head"], model)
        jacobian = jacobian_of(head.module, head.n_outputs, settings.backend)
        curvature = _curvature(content, tensors, settings.structure, jacobian)
        curvature = curvature.to(jacobian.parameters.device)
        tau, n_effective = settings.prior_precision, content["n_effective"]
        posterior = Posterior(jacobian.parameters, curvature, n_effective, tau)
        loss, n_points = settings.loss(normalized=head.normalized), content["n_points"]
        known = _fingerprints(tensors.get("fingerprints"))
        fitted = Fitted(head, jacobian, loss, posterior, n_points, settings.structure, known)
        return settings, replace(fitted, near_far=_near_far(tensors, jacobian))
    except files.MALFORMED as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _near_far(tensors: dict[str, Tensor], jacobian: HeadJacobian) -> NearFar | None:
    kept = {k.removeprefix(NEAR_FAR): t for k, t in tensors.items() if k.startswith(NEAR_FAR)}
    return NearFar.from_tensors(kept).to(jacobian.parameters.device) if kept else None


def _fingerprints(tensor: Tensor | None) -> Fingerprints | None:
    if tensor is None:
        return None
    if tensor.ndim != 1 or tensor.dtype != torch.int64:
        raise ValueError(f"fingerprints are {tensor.dtype} {tuple(tensor.shape)}, not int64 [N]")
    return tensor.numpy().view(np.uint64)


def _check_from_embeddings(name: str, model: nn.Module) -> None:
    if isinstance(model, Precomputed) and name != APPEND:
        raise FileFormatError("this posterior was not saved from embeddings: pass the model.")


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
    n_parameters = jacobian.n_parameters
    if structure == "full":
        _check_shape(tensors["vectors"], (n_parameters, n_parameters), "vectors")
        return DenseEigenbasis(tensors["vectors"])
    blocks = []
    for i, layout in enumerate(jacobian.layouts):
        left, right = tensors[f"left.{i}"], tensors[f"right.{i}"]
        _check_shape(left, (layout.n_outputs,) * 2, f"left.{i}")
        _check_shape(right, (layout.n_columns,) * 2, f"right.{i}")
        blocks.append(KroneckerEigenblock(left, right, layout))
    return KroneckerEigenbasis(tuple(blocks))


def _check_shape(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, not {shape}")


def _curvature(
    content: dict[str, Any], tensors: dict[str, Tensor], structure: str, jacobian: HeadJacobian
) -> SpectralCurvature:
    values = tensors["eigenvalues"]
    _check_shape(values, (jacobian.n_parameters,), "eigenvalues")
    basis = _basis(tensors, structure, jacobian)
    error = tensors.get("standard_error")
    return SpectralCurvature(basis, values, content["clipped_fraction"], error)
