"""A calibration as JSON and tensors, and back."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from laplace_metric.search._items import Column
from laplace_metric.search.match._answer import LabelPosterior
from laplace_metric.search.match._calibration import Calibration
from laplace_metric.search.match._calibrators import CALIBRATORS, Calibrator, Score
from laplace_metric.search.match._hits import FEATURE_SETS, FEATURES
from laplace_metric.search.match._labels import HeldOutLabels
from laplace_metric.search.match._probability import MatchProbability

COUNTS = ("k", "depth", "n_items")
PER_QUERY = ("logit", "match", "known", "first_match", "statistics")
P_VALUE, GRID = "p_value", "grid"
PER_ANSWER = ("label_probability", "right")
PER_FEATURE = ("weights", "low", "cap")
PER_LABEL = ("clustering_codes", "clustering_scores", "codes", "scores")
CLASSES = "classes"
PREFIX = "calibration."


def calibration_to_json(calibration: Calibration) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What goes into JSON, and the tensors."""
    matcher, score = calibration.matcher, calibration.matcher.score
    content: dict[str, Any] = {name: getattr(calibration, name) for name in COUNTS}
    content |= {"features": matcher.feature_set, "calibrator": matcher.calibrator.kind}
    content |= {"offset": score.offset, "cross_fitted": calibration.cross_fitted}
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    tensors = {name: getattr(calibration, name) for name in PER_QUERY}
    optional = {P_VALUE: calibration.p_value, GRID: calibration.grid}
    tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    tensors |= {name: getattr(score, name) for name in PER_FEATURE}
    tensors |= {"calibrator": matcher.calibrator.numbers}
    if calibration.labeller is not None:
        tensors |= {name: getattr(calibration, name) for name in PER_ANSWER}
        tensors |= {"labeller": calibration.labeller.numbers}
    if calibration.labels is not None:
        tensors |= {f"label_{name}": getattr(calibration.labels, name) for name in PER_LABEL}
        tensors |= calibration.labels.classes.tensors(CLASSES)
    return content, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def calibration_from_json(content: dict[str, Any], tensors: dict[str, Tensor]) -> Calibration:
    """What ``calibration_to_json`` gave.

    Raises
    ------
    ValueError
        If it is damaged; or ``KeyError``.
    """
    feature_set, name = content["features"], content["calibrator"]
    if feature_set not in FEATURE_SETS or name not in CALIBRATORS:
        raise ValueError(f"calibration by {feature_set!r}, {name!r}")
    if not math.isfinite(content["offset"]):
        raise ValueError(f"a calibration with offset {content['offset']}")
    for count in COUNTS:
        if type(content[count]) is not int or not 0 < content[count] < 2**63:
            raise ValueError(f"a calibration with {count} {content[count]!r:.60}")
    stored = {k.removeprefix(PREFIX): t for k, t in tensors.items() if k.startswith(PREFIX)}
    losses = {key: (float(a), float(b)) for key, (a, b) in content["losses"].items()}
    numbers = {key: stored[key] for key in PER_FEATURE}
    if any(number.shape != (len(FEATURES),) for number in numbers.values()):
        raise ValueError(f"a calibration by {len(numbers['weights'])} features")
    score = Score(**numbers, offset=float(content["offset"]))
    calibrator = Calibrator(name, stored["calibrator"])
    matcher = MatchProbability(feature_set, score, calibrator, losses)
    fields: dict[str, Any] = {key: content[key] for key in COUNTS}
    fields["cross_fitted"] = content.get("cross_fitted", False)  # not in files of 0.2.0
    if type(fields["cross_fitted"]) is not bool:
        raise ValueError(f"a calibration with cross_fitted {fields['cross_fitted']!r:.60}")
    fields |= {key: stored[key] for key in PER_QUERY}
    fields |= {key: stored.get(key) for key in (P_VALUE, GRID)}  # not in files of 0.1.0
    if "labeller" not in stored:  # calibrated with matches
        return Calibration(matcher, None, **fields)
    fields |= {key: stored[key] for key in PER_ANSWER}
    labeller, labels = LabelPosterior(stored["labeller"]), _labels_from_tensors(stored)
    return Calibration(matcher, labeller, **fields, labels=labels)


def _labels_from_tensors(stored: dict[str, Tensor]) -> HeldOutLabels | None:
    classes = Column.from_tensors(CLASSES, stored)
    if classes is None:  # saved by 0.1.0
        return None
    numbers = {name: stored[f"label_{name}"] for name in PER_LABEL}
    for kind in ("clustering_", ""):
        codes, scores = numbers[f"{kind}codes"], numbers[f"{kind}scores"]
        beyond = bool(((codes < 0) | (codes >= len(classes))).any())
        if codes.shape != scores.shape or beyond or bool(scores.isnan().any()):
            raise ValueError(f"label scores of {len(codes)} queries of {len(classes)} classes")
    return HeldOutLabels(classes, **numbers)
