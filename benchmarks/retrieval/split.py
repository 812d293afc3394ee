"""One random split of the queries: calibrate on one half, ask the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.errors import InputError
from laplace_metric.evaluation import Reliability, auroc
from laplace_metric.evaluation._probability_quality import quality

PROMISES = (0.8, 0.9, 0.95, 0.99)
ALPHAS = (0.05, 0.1, 0.2)
SHARES = tuple(i / 20 for i in range(1, 21))
"""Of the queries that are answered, along an abstention curve."""
FALSE_ALARMS = 0.05
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Question:
    """What all splits share: judged queries, their labels and norms, and what OOD inputs find."""

    judged: LabelledHits
    labels: Tensor
    norm: Tensor
    ood: dict[str, SearchHits]
    n_items: int
    k: int


def drawn(n: int, generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Return n rows in a random order."""
    order: npt.NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
    return order


def asked(question: Question, seed: int) -> dict[str, Any]:
    """Every number of one split; None where a promise could not be made."""
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = np.array_split(drawn(len(question.judged), generator), 2)
    known, test = question.judged.take(ours), question.judged.take(theirs)
    calibration = calibrated(known, question.k, question.n_items, drawn(len(known), generator))
    assessment = calibration.assess(test.hits)
    logit, p, right = assessment.logit, assessment.match_probability[:, 0], test.match[:, 0]
    assert assessment.carrier is not None  # labels calibrated it
    assert assessment.label_probability is not None
    assert test.hits.uncertainty is not None
    answered = np.take_along_axis(test.match, assessment.carrier[:, None], 1)[:, 0]
    outcome = quality(p, right, n=1)
    scores = {
        "match probability": p,
        "cosine": -test.hits.distance[:, 0],
        "uncertainty": -test.hits.uncertainty,
        "norm": question.norm.numpy()[theirs],
        "label share": test.hits.votes.share[:, 0],  # type: ignore[union-attr]
        "ambiguity": -test.hits.votes.ambiguity,  # type: ignore[union-attr]
    }
    return {
        "chosen": calibration.matcher.chosen,
        "top": float(right.mean()),
        "answered": float(answered.mean()),
        "answer auroc": auroc(
            -assessment.label_probability[answered], -assessment.label_probability[~answered]
        ),
        "answer ece": quality(assessment.label_probability, answered, n=1).ece.estimate,
        "brier": outcome.brier.estimate,
        "brier of the base rate": float(right.var()),
        "ece": outcome.ece.estimate,
        **binned(outcome.reliability),
        **promises(calibration, known, p, right, scores["cosine"]),
        **coverage(calibration, test, logit, question.labels.numpy()[theirs]),
        **alarms(calibration, test, question.ood),
        **{f"auroc {name}": auroc(-score[right], -score[~right]) for name, score in scores.items()},
        **{f"curve {name}": curve(score, right) for name, score in scores.items()},
    }


def promises(
    calibration: Calibration, known: LabelledHits, p: Array, right: Array, cosine: Array
) -> dict[str, float | None]:
    """Precision and recall, promised against obtained.

    Beside them a threshold on the cosine as it is set by hand: the lowest whose precision on all
    of the calibration queries is the target.
    """
    outcome: dict[str, float | None] = {}
    held = (-known.hits.distance[:, 0], known.match[:, 0])
    for target in PROMISES:
        ours = _threshold(calibration, target)
        outcome |= _kept(f"precision {target:g}", target, ours, p, right)
        outcome |= _kept(f"cosine {target:g}", target, _naive(*held, target), cosine, right)
    value = calibration.guarantee(recall=0.9, of="match", alpha=None).value
    recall = float((p[right] >= value).mean())
    outcome |= {"recall 0.9": recall, "recall 0.9 kept": float(recall >= 0.9)}
    return outcome


def _threshold(calibration: Calibration, precision: float) -> float | None:
    try:
        return calibration.guarantee(precision=precision, of="match", alpha=None).value
    except InputError:
        return None


def _kept(
    name: str, target: float, value: float | None, score: Array, right: Array
) -> dict[str, float | None]:
    outcome: dict[str, float | None] = {f"{name} made": float(value is not None)}
    accepted = np.zeros_like(right) if value is None else score >= value
    precision = float(right[accepted].mean()) if bool(accepted.any()) else None
    outcome[f"{name} accepted"] = float(accepted.mean()) if value is not None else None
    outcome[f"{name} obtained"] = precision
    outcome[f"{name} kept"] = None if precision is None else float(precision >= target)
    return outcome


def _naive(score: Array, right: Array, target: float) -> float | None:
    order = np.argsort(-score)
    precision = right[order].cumsum() / np.arange(1, len(order) + 1)
    good = np.flatnonzero(precision >= target)
    return float(score[order][good[-1]]) if len(good) else None


def coverage(
    calibration: Calibration, test: LabelledHits, logit: Array, labels: Array
) -> dict[str, float | None]:
    """Share of known queries whose set holds a match, sizes, and the same class by class."""
    outcome: dict[str, float | None] = {}
    for alpha in ALPHAS:
        name = f"sets {1 - alpha:g}"
        try:
            members = calibration.members(logit, alpha)
        except InputError:
            members = None
        outcome[f"{name} made"] = float(members is not None)
        if members is None:
            continue
        held = (members & test.match).any(1)[test.known]
        sizes = members.sum(1)[test.known]
        by_class = _by_class(held, labels[test.known])
        outcome |= {
            f"{name} coverage": float(held.mean()),
            f"{name} size": float(sizes.mean()),
            f"{name} empty": float((sizes == 0).mean()),
            f"{name} lowest class": float(np.quantile(by_class, 0.1)),
        }
    return outcome


def _by_class(held: Array, labels: Array) -> Array:
    _, at = np.unique(labels, return_inverse=True)
    return np.bincount(at, held) / np.bincount(at)


def alarms(
    calibration: Calibration, test: LabelledHits, ood: dict[str, SearchHits]
) -> dict[str, float]:
    """Share of queries called unknown: with a match, of a label that is not there, OOD inputs."""
    p = calibration.assess(test.hits).p_value
    flagged = p <= FALSE_ALARMS
    outcome = {"unknown of known": float(flagged[test.known].mean())}
    if bool((~test.known).any()):
        outcome["unknown of missing"] = float(flagged[~test.known].mean())
        outcome["auroc missing"] = auroc(-p[test.known], -p[~test.known])
    for name, hits in ood.items():
        theirs = calibration.assess(hits).p_value
        outcome[f"unknown of {name}"] = float((theirs <= FALSE_ALARMS).mean())
        outcome[f"auroc {name}"] = auroc(-p[test.known], -theirs)
    return outcome


def curve(score: Array, right: Array) -> list[float]:
    """Precision among the best scored of each of ``SHARES``."""
    order = np.argsort(-score)
    kept = [max(1, round(share * len(order))) for share in SHARES]
    return [float(right[order[:n]].mean()) for n in kept]


def binned(reliability: Reliability) -> dict[str, list[float]]:
    """Sums over each bin, which add up over splits: queries, probabilities said, matches."""
    count = reliability.bin_count.double()
    said, right = (
        (values.nan_to_num(nan=0.0) * count).tolist()
        for values in (reliability.bin_confidence, reliability.bin_accuracy)
    )
    return {"bin queries": count.tolist(), "bin said": said, "bin right": right}
