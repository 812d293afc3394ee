"""Saved values of a fitted ``ImageTextEmbedder``: heads, posteriors, history, inclusion.

They are JSON and tensors. Encoders are the user's own: they are not saved.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis, KroneckerEigenblock
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.image_text._head import GaussianHead
from laplace_metric.image_text._inclusion_calibration import InclusionCalibration
from laplace_metric.image_text.objectives._objectives import OBJECTIVES, TwoHeads
from laplace_metric.image_text.towers._spread import Spread
from laplace_metric.image_text.towers._tower_posterior import TowerPosterior
from laplace_metric.image_text.towers._towers import FittedHeads
from laplace_metric.io import UNIT

# A fitted ``ImageTextEmbedder`` as JSON and tensors: heads, posteriors, history, inclusion.

IMAGE_TEXT = files.Kind("heads", "saved heads of images and texts", 4)
HEADS, SIDES = "heads.", ("image.", "text.")
"""Beginnings of names of tensors."""


def heads_part(settings: dict[str, Any], fitted: FittedHeads) -> files.Part:
    """Return everything except the encoders as a part of a file."""
    heads, objective = fitted.heads, fitted.heads.objective
    names = {kind: name for name, kind in OBJECTIVES.items()}
    content: dict[str, Any] = {
        "settings": settings,
        "objective": names.get(type(objective)),
        "objective_settings": objective.settings,
        "sizes": [head.size for head in heads.both],
        "biases": [head.mean.bias is not None for head in heads.both],
        "given": fitted.given,
        "losses": fitted.losses,
        "spreads": {k: [asdict(s) for s in rows] for k, rows in fitted.spreads.items()},
    }
    tensors = {HEADS + name: tensor for name, tensor in heads.state_dict().items()}
    if fitted.posteriors is not None:
        both = [tower.posterior for tower in fitted.posteriors]
        content["n_effective"] = [posterior.n_effective for posterior in both]
        content["prior_precision"] = [posterior.prior_precision for posterior in both]
        for side, tower in zip(SIDES, fitted.posteriors, strict=True):
            tensors |= {side + name: t for name, t in _curvature_tensors(tower).items()}
    if fitted.inclusion is not None:
        content["inclusion"], controls = files.record(fitted.inclusion)
        tensors |= controls
    if fitted.fingerprints is not None:
        tensors["fingerprints"] = torch.from_numpy(fitted.fingerprints.view(np.int64))
    return files.Part(IMAGE_TEXT, content, tensors)


def fitted_of(content: dict[str, Any], tensors: dict[str, Tensor], heads: TwoHeads) -> FittedHeads:
    """Put what ``heads_part`` wrote onto heads of the same sizes.

    Raises
    ------
    FileFormatError
        For arrays that hold values that no fit has.
    Of ``files.MALFORMED``
        For values that are missing, or not of these heads.
    """
    state = files.below(HEADS, tensors)
    for name, tensor in state.items():
        files.checked_array(f"{HEADS}{name}", tensor, [None] * tensor.ndim)
    heads.to(state["image.mean.weight"]).load_state_dict(state)
    spreads = {k: [Spread(**row) for row in rows] for k, rows in content["spreads"].items()}
    fitted = FittedHeads(heads.eval(), None, content["losses"], spreads, given=content["given"])
    if "n_effective" in content:
        image, text = (
            TowerPosterior.around(
                head, _curvature_of(files.below(side, tensors), side, head), n, prior
            )
            for side, head, n, prior in zip(
                SIDES, heads.both, content["n_effective"], content["prior_precision"], strict=True
            )
        )
        fitted.posteriors = image, text
    if "inclusion" in content:
        told = files.Fields(content["inclusion"], "inclusion")
        fitted.inclusion = files.restored(InclusionCalibration, told, tensors)
    if "fingerprints" in tensors:
        fitted.fingerprints = tensors["fingerprints"].numpy().view(np.uint64)
    return fitted


def _curvature_tensors(tower: TowerPosterior) -> dict[str, Tensor]:
    curvature = tower.posterior.curvature
    assert isinstance(curvature.basis, KroneckerEigenbasis)
    (block,) = curvature.basis.blocks
    return {**files.record(curvature)[1], "left": block.left, "right": block.right}


def _curvature_of(tensors: dict[str, Tensor], side: str, head: GaussianHead) -> SpectralCurvature:
    """Rebuild the curvature.

    Raises
    ------
    FileFormatError
        For arrays that are missing, of another shape, or hold values that no fit has.
    """
    layout = LinearJacobian.of(head.mean).layout
    d, columns = layout.n_outputs, layout.n_columns
    left, right = (
        files.checked_array(f"{side}{name}", tensors.get(name), [n, n], least=-UNIT, most=UNIT)
        for name, n in (("left", d), ("right", columns))
    )
    basis = KroneckerEigenbasis((KroneckerEigenblock(left, right, layout),))
    where, given = files.Fields({}, side.rstrip(".")), {"basis": basis, "negative_fraction": 0.0}
    return files.restored(SpectralCurvature, where, tensors, given=given, P=d * columns)
