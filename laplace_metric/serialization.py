"""A fitted posterior as JSON and tensors, and back onto a model with the same head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from laplace_metric import files
from laplace_metric.curvature import DiagonalCurvature
from laplace_metric.errors import FileFormatError
from laplace_metric.fitting import Fitted
from laplace_metric.heads import Head
from laplace_metric.jacobians import LinearJacobian
from laplace_metric.posterior import Posterior
from laplace_metric.settings import Settings


def save(folder: Path, settings: Settings, fitted: Fitted) -> None:
    """Write everything but the model; the head is kept as a fingerprint of its weights."""
    head, posterior = fitted.head, fitted.posterior
    content = {
        "settings": settings.to_json(),
        "n_points": fitted.n_points,
        "n_effective": posterior.n_effective,
        "clipped_fraction": posterior.curvature.clipped_fraction,
        "head": _describe(head.name, head.module, normalized=head.normalized),
    }
    tensors = {"curvature": posterior.curvature.values}
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
        head = _matching_head(content["head"], model)
        mean = LinearJacobian.of(head.module).parameters
        curvature = _curvature(content, tensors, head)
        tau = settings.prior_precision
        posterior = Posterior(mean, curvature, content["n_effective"], tau)
        return settings, Fitted(head, posterior, content["n_points"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _describe(name: str, module: nn.Linear, *, normalized: bool) -> dict[str, Any]:
    return {
        "name": name,
        "normalized": normalized,
        "in_features": module.in_features,
        "out_features": module.out_features,
        "bias": module.bias is not None,
        "dtype": str(module.weight.dtype),
        "sha256": files.fingerprint(module),
    }


def _matching_head(expected: dict[str, Any], model: nn.Module) -> Head:
    name = expected["name"]
    module = dict(model.named_modules()).get(name)
    if not isinstance(module, nn.Linear):
        raise FileFormatError(f"the posterior is for a linear head {name!r}, which model lacks.")
    found = _describe(name, module, normalized=expected["normalized"])
    for key, value in expected.items():
        if found[key] != value:
            hint = " (the weights differ: fit again)" if key == "sha256" else ""
            raise FileFormatError(
                f"head {name!r} has {key} {found[key]!r}, the posterior was fitted for "
                f"{value!r}{hint}."
            )
    return Head(name, module, expected["normalized"])


def _curvature(
    content: dict[str, Any], tensors: dict[str, Tensor], head: Head
) -> DiagonalCurvature:
    device = head.module.weight.device
    values = tensors["curvature"].to(device)
    n_parameters = LinearJacobian.of(head.module).n_parameters
    if values.shape != (n_parameters,):
        raise ValueError(f"curvature {tuple(values.shape)} for {n_parameters} parameters")
    error = tensors.get("standard_error")
    return DiagonalCurvature(
        values, content["clipped_fraction"], None if error is None else error.to(device)
    )
