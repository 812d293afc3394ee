"""A calibration as JSON and tensors, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplace_metric.search.match._calibration import Calibration
from laplace_metric.search.match._calibrators import CALIBRATORS, Calibrator, Score
from laplace_metric.search.match._hits import KINDS, Nonconformity
from laplace_metric.search.match._probability import MatchProbability

COUNTS = ("k", "depth", "n_items")
SCORES = ("logit", "match", "known", "typicality", "first_match")
NUMBERS = ("weights", "low", "cap")
PREFIX = "calibration."


def written(calibration: Calibration) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What goes into JSON, and the tensors."""
    matcher, score = calibration.matcher, calibration.matcher.score
    content: dict[str, Any] = {name: getattr(calibration, name) for name in COUNTS}
    content |= {"evidence": matcher.kind, "map": matcher.map.kind, "offset": score.offset}
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    tensors = {name: getattr(calibration, name) for name in SCORES}
    tensors |= {name: getattr(score, name) for name in NUMBERS}
    tensors |= {"map": matcher.map.numbers, "typical": calibration.typical.reference}
    return content, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def read(content: dict[str, Any], tensors: dict[str, Tensor]) -> Calibration:
    """What ``written`` gave; ``KeyError`` or ``ValueError`` if it is damaged."""
    kind, name = content["evidence"], content["map"]
    if kind not in KINDS or name not in CALIBRATORS:
        raise ValueError(f"calibration by {kind!r}, {name!r}")
    own = {k.removeprefix(PREFIX): t for k, t in tensors.items() if k.startswith(PREFIX)}
    losses = {key: (float(a), float(b)) for key, (a, b) in content["losses"].items()}
    numbers = {key: own[key] for key in NUMBERS}
    score = Score(**numbers, offset=float(content["offset"]))
    matcher = MatchProbability(kind, score, Calibrator(name, own["map"]), losses)
    fields: dict[str, Any] = {key: content[key] for key in COUNTS}
    fields |= {key: own[key] for key in SCORES}
    return Calibration(matcher, **fields, typical=Nonconformity(own["typical"]))
