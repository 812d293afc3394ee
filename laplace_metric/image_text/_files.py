"""A fitted ``ImageTextEmbedder`` as JSON and tensors: heads, posteriors, history, inclusion.

Encoders are the user's own: they are not saved.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.curvature._structures import (
    KroneckerEigenbasis,
    KroneckerEigenblock,
    SpectralCurvature,
)
from laplace_metric.errors import FileFormatError, InputError, LaplaceMetricError
from laplace_metric.heads._jacobian import LinearJacobian
from laplace_metric.image_text._fit import FittedHeads, new_heads
from laplace_metric.image_text._heads import GaussianHead, HeadSettings
from laplace_metric.image_text._includes import InclusionCalibration
from laplace_metric.image_text._objectives import OBJECTIVES, Objective
from laplace_metric.image_text._posterior import TowerPosterior, around
from laplace_metric.image_text._training import Spread

IMAGE_TEXT = files.FileKind("imagetext", "saved heads of images and texts", 2)
HEADS, SIDES = "heads.", ("image.", "text.")
"""Beginnings of names of tensors."""
NUMBERS = ("slope", "offset", "auroc")


def save_heads(
    folder: Path, settings: HeadSettings, objective: Objective, fitted: FittedHeads
) -> None:
    """Write everything but the encoders."""
    heads = fitted.heads
    names = {kind: name for name, kind in OBJECTIVES.items()}
    content: dict[str, Any] = {
        "settings": asdict(settings),
        "objective": names.get(type(objective)),
        "objective_settings": objective.settings,
        "sizes": [heads.image.size, heads.text.size],
        "losses": fitted.losses,
        "spreads": {k: [asdict(s) for s in rows] for k, rows in fitted.spreads.items()},
    }
    tensors = {HEADS + name: tensor for name, tensor in heads.state_dict().items()}
    if fitted.posteriors is not None:
        content["n_effective"] = fitted.posteriors[0].posterior.n_effective
        for side, tower in zip(SIDES, fitted.posteriors, strict=True):
            tensors |= {side + name: t for name, t in _curvature_tensors(tower).items()}
    if fitted.inclusion is not None:
        content["inclusion"] = {name: getattr(fitted.inclusion, name) for name in NUMBERS}
        tensors["controls"] = fitted.inclusion.controls
    if fitted.fingerprints is not None:
        tensors["fingerprints"] = torch.from_numpy(fitted.fingerprints.view(np.int64))
    files.write(folder, content, tensors, IMAGE_TEXT)


def load_heads(
    folder: Path, objective: Objective | None
) -> tuple[HeadSettings, Objective, FittedHeads]:
    """Read the folder of ``save_heads``.

    Raises
    ------
    FileFormatError
        If it is damaged.
    InputError
        If the objective was the user's own and is not passed.
    LaplaceMetricError
        As it is, from within.
    """
    content, tensors = files.read(folder, IMAGE_TEXT)
    try:
        if objective is None:
            if content["objective"] is None:
                raise InputError("these heads were trained with an objective of your own: pass it.")
            objective = OBJECTIVES[content["objective"]](**content["objective_settings"])
        settings = HeadSettings(**content["settings"])
        image_size, text_size = content["sizes"]
        with torch.random.fork_rng(devices=[]):  # the first weights are replaced
            heads = new_heads((image_size, text_size), objective, settings)
        state = _named(tensors, HEADS)
        heads.to(state["image.mean.weight"]).load_state_dict(state)
        spreads = {k: [Spread(**row) for row in rows] for k, rows in content["spreads"].items()}
        fitted = FittedHeads(heads.eval(), None, content["losses"], spreads)
        if "n_effective" in content:
            n, prior = content["n_effective"], settings.prior_precision
            image, text = (_named(tensors, side) for side in SIDES)
            fitted.posteriors = (
                around(heads.image, _curvature_of(image, heads.image), n, prior),
                around(heads.text, _curvature_of(text, heads.text), n, prior),
            )
        if "inclusion" in content:
            numbers = {name: content["inclusion"][name] for name in NUMBERS}
            fitted.inclusion = InclusionCalibration(controls=tensors["controls"], **numbers)
        if "fingerprints" in tensors:
            fitted.fingerprints = tensors["fingerprints"].numpy().view(np.uint64)
        return settings, objective, fitted
    except LaplaceMetricError:
        raise
    except files.MALFORMED as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries of a prefix, without it."""
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _curvature_tensors(tower: TowerPosterior) -> dict[str, Tensor]:
    curvature = tower.posterior.curvature
    assert isinstance(curvature.basis, KroneckerEigenbasis)
    (block,) = curvature.basis.blocks
    return {"eigenvalues": curvature.eigenvalues, "left": block.left, "right": block.right}


def _curvature_of(tensors: dict[str, Tensor], head: GaussianHead) -> SpectralCurvature:
    """Rebuild the curvature, or raise ``ValueError`` for shapes that are not of the head."""
    layout = LinearJacobian.of(head.mean).layout
    d, columns = layout.n_outputs, layout.n_columns
    wanted = {"eigenvalues": (d * columns,), "left": (d, d), "right": (columns, columns)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != wanted:
        raise ValueError(f"a posterior has tensors {shapes}, not {wanted}")
    block = KroneckerEigenblock(tensors["left"], tensors["right"], layout)
    return SpectralCurvature(KroneckerEigenbasis((block,)), tensors["eigenvalues"], 0.0)
