"""A calibration as JSON and tensors, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplace_metric.matching.calibration import Calibration
from laplace_metric.matching.evidence import KINDS
from laplace_metric.matching.maps import MAPS, Map
from laplace_metric.matching.probability import MatchProbability

SCORES = ("logit", "match", "known", "nearest_match")
PREFIX = "calibration."


def written(calibration: Calibration) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What goes into JSON, and the tensors."""
    matcher = calibration.matcher
    content: dict[str, Any] = {"k": calibration.k, "depth": calibration.depth}
    content |= {
        "n_items": calibration.n_items,
        "evidence": matcher.kind,
        "map": matcher.map.kind,
        "offset": matcher.offset,
    }
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    tensors = {name: getattr(calibration, name) for name in SCORES}
    tensors |= {"weights": matcher.weights, "floor": matcher.floor, "map": matcher.map.numbers}
    return content, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def read(content: dict[str, Any], tensors: dict[str, Tensor]) -> Calibration:
    """What ``written`` gave; ``KeyError`` or ``ValueError`` if it is damaged."""
    kind, name = content["evidence"], content["map"]
    if kind not in KINDS or name not in MAPS:
        raise ValueError(f"calibration by {kind!r}, {name!r}")
    own = {key: tensors[f"{PREFIX}{key}"] for key in (*SCORES, "weights", "floor", "map")}
    losses = {key: (float(a), float(b)) for key, (a, b) in content["losses"].items()}
    calibrated = Map(name, own["map"])
    floor, offset = own["floor"], float(content["offset"])
    matcher = MatchProbability(kind, own["weights"], offset, floor, calibrated, losses)
    numbers = (content["k"], content["depth"], content["n_items"])
    return Calibration(matcher, *numbers, *(own[key] for key in SCORES))
