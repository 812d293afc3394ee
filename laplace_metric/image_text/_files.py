"""A fitted ``ImageTextEmbedder`` as JSON and tensors: heads, posterior, history, own encoders."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, LaplaceMetricError
from laplace_metric.image_text._fit import FittedHeads, Towers, new_heads
from laplace_metric.image_text._heads import HeadSettings
from laplace_metric.image_text._includes import InclusionCalibration
from laplace_metric.image_text._objectives import OBJECTIVES, Objective
from laplace_metric.image_text._pairs import Encoder
from laplace_metric.image_text._posterior import (
    TowerPosterior,
    around,
    curvature_as_tensors,
    curvature_from_tensors,
)
from laplace_metric.image_text._towers import described, rebuilt
from laplace_metric.image_text._training import Spread, TwoHeads

IMAGE_TEXT = files.FileKind("imagetext", "saved heads of images and texts", 1)
SIDES = ("image", "text")
HEADS, ENCODER = "heads.", "encoder."
DTYPES = {"torch.float32": torch.float32, "torch.float64": torch.float64}
NUMBERS = ("slope", "offset", "auroc")


def save_heads(
    folder: Path,
    settings: HeadSettings,
    objective: Objective,
    fitted: FittedHeads,
    towers: Towers,
) -> None:
    """Write everything but encoders of the user's own."""
    heads = fitted.heads
    kinds = {kind: name for name, kind in OBJECTIVES.items()}
    content = {
        "settings": settings.to_json(),
        "objective": kinds.get(type(objective)),
        "objective_settings": objective.settings,
        "sizes": [heads.image.size, heads.text.size],
        "dtype": str(heads.image.mean.weight.dtype),
        "losses": fitted.losses,
        "spreads": {k: [asdict(s) for s in rows] for k, rows in fitted.spreads.items()},
    }
    tensors = {HEADS + name: tensor for name, tensor in heads.state_dict().items()}
    if fitted.posteriors is not None:
        for side, tower in zip(SIDES, fitted.posteriors, strict=True):
            named = curvature_as_tensors(tower.posterior.curvature)
            tensors |= {f"{side}.{name}": tensor for name, tensor in named.items()}
        content["n_effective"] = [tower.posterior.n_effective for tower in fitted.posteriors]
    if fitted.inclusion is not None:
        content["inclusion"] = {name: getattr(fitted.inclusion, name) for name in NUMBERS}
        tensors["controls"] = fitted.inclusion.controls
    if fitted.fingerprints is not None:
        tensors["fingerprints"] = torch.from_numpy(fitted.fingerprints.view(np.int64))
    own = {side: described(getattr(towers, side)) for side in SIDES}
    content["encoders"] = own = {side: how for side, how in own.items() if how is not None}
    for side in own:
        state = getattr(towers, side).state_dict()
        tensors |= {f"{side}_{ENCODER}{k}": tensor for k, tensor in state.items()}
    files.write(folder, content, tensors, IMAGE_TEXT)


def load_heads(
    folder: Path, objective: Objective | None, encoders: dict[str, Encoder | None]
) -> tuple[HeadSettings, Objective, FittedHeads, Towers]:
    """Read the folder of ``save_heads``.

    Raises
    ------
    FileFormatError
        If it is damaged.
    LaplaceMetricError
        As it is, from within.
    InputError
        If the objective or an encoder was the user's own and is not passed.
    """
    content, tensors = files.read(folder, IMAGE_TEXT)
    try:
        name = content["objective"]
        if objective is None and name is None:
            raise InputError("these heads were trained with an objective of your own: pass it.")
        objective = objective or OBJECTIVES[name](**content["objective_settings"])
        settings = HeadSettings(**content["settings"])
        towers = Towers(*(_encoder(content, tensors, side, encoders[side]) for side in SIDES))
        return settings, objective, _fitted(content, tensors, objective, settings), towers
    except LaplaceMetricError:
        raise
    except files.MALFORMED as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _encoder(
    content: dict[str, Any], tensors: dict[str, Tensor], side: str, given: Encoder | None
) -> Encoder:
    """The one that is passed, or the one that was saved."""
    if given is not None:
        return given
    description = content.get("encoders", {}).get(side)
    if description is None:
        raise InputError(f"the {side} encoder was one of your own: pass {side}_encoder.")
    return rebuilt(description, _named(tensors, f"{side}_{ENCODER}"))


def _fitted(
    content: dict[str, Any], tensors: dict[str, Tensor], objective: Objective, how: HeadSettings
) -> FittedHeads:
    image_size, text_size = content["sizes"]
    with torch.random.fork_rng(devices=[]):  # their first weights are not kept
        heads = new_heads((image_size, text_size), objective, how).to(DTYPES[content["dtype"]])
    heads.load_state_dict(_named(tensors, HEADS))
    spreads = {k: [Spread(**row) for row in rows] for k, rows in content["spreads"].items()}
    fitted = FittedHeads(heads.eval(), None, content["losses"], spreads)
    if "n_effective" in content:
        fitted.posteriors = _posteriors(content["n_effective"], tensors, heads, how)
    if "inclusion" in content:
        numbers = {name: content["inclusion"][name] for name in NUMBERS}
        fitted.inclusion = InclusionCalibration(controls=tensors["controls"], **numbers)
    if "fingerprints" in tensors:
        fitted.fingerprints = tensors["fingerprints"].numpy().view(np.uint64)
    return fitted


def _posteriors(
    n_effective: list[float], tensors: dict[str, Tensor], heads: TwoHeads, how: HeadSettings
) -> tuple[TowerPosterior, TowerPosterior]:
    towers = []
    for side, head, n in zip(SIDES, (heads.image, heads.text), n_effective, strict=True):
        named = _named(tensors, f"{side}.")
        curvature = curvature_from_tensors(named, head, how.structure)
        towers.append(around(head, curvature, n, how.prior_precision))
    return towers[0], towers[1]


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries of a prefix, without it."""
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
