"""A fitted posterior as JSON and tensors, and back onto a model with the same head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import files
from laplace_metric.curvature import (
    Basis,
    DenseBasis,
    IdentityBasis,
    KroneckerBasis,
    KroneckerBlock,
    SpectralCurvature,
)
from laplace_metric.errors import FileFormatError
from laplace_metric.fitting import Fitted
from laplace_metric.heads import APPEND, Head, identity_head, named_head
from laplace_metric.jacobians import HeadJacobian, jacobian_of
from laplace_metric.posterior import Posterior
from laplace_metric.precomputed import Precomputed
from laplace_metric.settings import Settings


def save(folder: Path, settings: Settings, fitted: Fitted) -> None:
    """Write everything but the model; the head is kept as a fingerprint of its weights."""
    posterior = fitted.posterior
    content = {
        "settings": settings.to_json(),
        "n_points": fitted.n_points,
        "n_effective": posterior.n_effective,
        "clipped_fraction": posterior.curvature.clipped_fraction,
        "head": _describe(fitted.head, fitted.n_outputs),
    }
    tensors = {"eigenvalues": posterior.curvature.eigenvalues, **_basis_tensors(posterior)}
    if posterior.curvature.standard_error is not None:
        tensors["standard_error"] = posterior.curvature.standard_error
    files.write(folder, content, tensors)


def load(folder: Path, model: nn.Module) -> tuple[Settings, Fitted]:
    """Read what ``save`` wrote and check that it belongs to the head of ``model``.

    Raises
    ------
    FileFormatError
        If the file or the head does not fit.
    """
    content, tensors = files.read(folder)
    try:
        settings = Settings.from_json(content["settings"])
        head, n_outputs = _matching_head(content["head"], model), content["head"]["n_outputs"]
        jacobian = jacobian_of(head.module, n_outputs, settings.backend)
        curvature = _curvature(content, tensors, settings.structure, jacobian)
        curvature = curvature.to(jacobian.parameters.device)
        tau, n_effective = settings.prior_precision, content["n_effective"]
        posterior = Posterior(jacobian.parameters, curvature, n_effective, tau)
        how = settings.structure, settings.backend
        return settings, Fitted(head, posterior, content["n_points"], n_outputs, *how)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _describe(head: Head, n_outputs: int) -> dict[str, Any]:
    parameters = list(head.module.parameters())
    return {
        "name": head.name,
        "normalized": head.normalized,
        "n_outputs": n_outputs,
        "shapes": [list(p.shape) for p in parameters],
        "dtype": str(parameters[0].dtype),
        "sha256": files.fingerprint(head.module),
    }


def _matching_head(expected: dict[str, Any], model: nn.Module) -> Head:
    name, normalized = expected["name"], expected["normalized"]
    if isinstance(model, Precomputed) and name != APPEND:
        raise FileFormatError("this posterior was not saved from embeddings: pass the model.")
    found = _find(name, expected, model)
    if found is None:
        raise FileFormatError(f"the posterior is for a head {name!r}, which model lacks.")
    head = Head(name, found[0], normalized, found[1])
    described = _describe(head, expected["n_outputs"])
    for key, value in expected.items():
        if described[key] != value:
            hint = " (the weights differ: fit again)" if key == "sha256" else ""
            raise FileFormatError(
                f"head {name!r} has {key} {described[key]!r}, the posterior was fitted for "
                f"{value!r}{hint}."
            )
    return head


def _find(
    name: str, expected: dict[str, Any], model: nn.Module
) -> tuple[nn.Module, tuple[nn.Module, nn.Module] | None] | None:
    found = named_head(model, name)
    if found is None and name == APPEND:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = getattr(torch, expected["dtype"].removeprefix("torch."))
        like = torch.empty(0, dtype=dtype, device=device)
        return identity_head(expected["n_outputs"], like), None
    has_parameters = found is not None and next(found[0].parameters(), None) is not None
    return found if has_parameters else None


def _basis_tensors(posterior: Posterior) -> dict[str, Tensor]:
    basis = posterior.curvature.basis
    if isinstance(basis, DenseBasis):
        return {"vectors": basis.vectors}
    if isinstance(basis, KroneckerBasis):
        sides = {"left": [b.left for b in basis.blocks], "right": [b.right for b in basis.blocks]}
        return {f"{s}.{i}": t for s, matrices in sides.items() for i, t in enumerate(matrices)}
    return {}


def _basis(tensors: dict[str, Tensor], structure: str, jacobian: HeadJacobian) -> Basis:
    if structure == "diag":
        return IdentityBasis()
    n_parameters = jacobian.n_parameters
    if structure == "full":
        _check_shape(tensors["vectors"], (n_parameters, n_parameters), "vectors")
        return DenseBasis(tensors["vectors"])
    blocks = []
    for i, layout in enumerate(jacobian.layouts):
        left, right = tensors[f"left.{i}"], tensors[f"right.{i}"]
        _check_shape(left, (layout.n_outputs,) * 2, f"left.{i}")
        _check_shape(right, (layout.n_columns,) * 2, f"right.{i}")
        blocks.append(KroneckerBlock(left, right, layout))
    return KroneckerBasis(tuple(blocks))


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
