"""A fitted posterior as JSON and tensors, and back onto a model with the same head."""

from __future__ import annotations

from pathlib import Path

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
        if isinstance(model, Precomputed) and content["head"]["name"] != APPEND:
            raise FileFormatError("this posterior was not saved from embeddings: pass the model.")
        head = head_from_spec(content["head"], model)
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
        known = tensors.get("fingerprints")
        return settings, Fitted(
            head,
            jacobian,
            settings.loss(normalized=head.normalized),
            Posterior(mean, curvature.to(mean.device), n_effective, tau),
            content["n_points"],
            settings.structure,
            None if known is None else known.numpy().view(np.uint64),
            NearFar.from_tensors(kept).to(mean.device) if kept else None,
        )
    except files.MALFORMED as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


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
    known = tensors.get("fingerprints")
    if known is not None and (known.ndim != 1 or known.dtype != torch.int64):
        raise ValueError(f"fingerprints are {known.dtype} {tuple(known.shape)}, not int64 [N]")
