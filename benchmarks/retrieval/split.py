"""One random split of the queries: calibrate on one half, ask the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import LabelledHits, SearchHits
from laplace_metric.calibration._learn import calibrated
from laplace_metric.calibration._quality import quality
from laplace_metric.errors import InputError
from laplace_metric.evaluation import Reliability, auroc

PROMISES = (0.8, 0.9, 0.95, 0.99)
ALPHAS = (0.05, 0.1, 0.2)
SHARES = tuple(i / 20 for i in range(1, 21))
"""Of the queries that are answered, along an abstention curve."""
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Question:
    """What all splits share: judged queries, their labels and norms, and what OOD inputs find."""

    judged: LabelledHits
    labels: Tensor
    norm: Tensor
    ood: dict[str, SearchHits]
    n_items: int
    k: int


def asked(question: Question, seed: int) -> dict[str, Any]:
    """Every number of one split; None where a promise could not be made."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(question.judged), generator=generator)
    ours, theirs = order.tensor_split(2)
    known, test = question.judged.take(ours), question.judged.take(theirs)
    calibration = calibrated(known, question.k, question.n_items, generator)
    assessment = calibration.assess(test.hits)
    logit, p, right = assessment.logit, assessment.match_probability[:, 0], test.match[:, 0]
    assert assessment.answer is not None  # labels calibrated it
    assert assessment.label_probability is not None
    answered = test.match.gather(1, assessment.answer[:, None])[:, 0]
    outcome = quality(p, right, n=1)
    scores = {
        "match probability": p,
        "cosine": -test.hits.distance[:, 0],
        "uncertainty": -test.hits.trace,
        "norm": question.norm[theirs],
        "label share": test.hits.votes.share[:, 0],  # type: ignore[union-attr]
        "ambiguity": -test.hits.votes.ambiguity,  # type: ignore[union-attr]
    }
    return {
        "chosen": calibration.matcher.chosen,
        "top": float(right.double().mean()),
        "answered": float(answered.double().mean()),
        "answer auroc": auroc(
            -assessment.label_probability[answered], -assessment.label_probability[~answered]
        ),
        "answer ece": quality(assessment.label_probability, answered, n=1).ece.estimate,
        "brier": outcome.brier.estimate,
        "brier of the base rate": float(right.double().var(correction=0)),
        "ece": outcome.ece.estimate,
        **binned(outcome.reliability),
        **promises(calibration, known, p, right, scores["cosine"]),
        **coverage(calibration, test, logit, question.labels[theirs]),
        **alarms(calibration, test, question.ood),
        **{f"auroc {name}": auroc(-score[right], -score[~right]) for name, score in scores.items()},
        **{f"curve {name}": curve(score, right) for name, score in scores.items()},
    }


def promises(
    calibration: Calibration, known: LabelledHits, p: Tensor, right: Tensor, cosine: Tensor
) -> dict[str, float | None]:
    """Precision and recall, promised against obtained.

    Beside them a threshold on the cosine as it is set by hand: the lowest whose precision on all
    of the calibration queries is the target.
    """
    outcome: dict[str, float | None] = {}
    held = (-known.hits.distance[:, 0], known.match[:, 0])
    for target in PROMISES:
        ours = _threshold(lambda t=target: calibration.threshold_for(precision=t, alpha=None).value)  # type: ignore[misc]
        outcome |= _kept(f"precision {target:g}", target, ours, p, right)
        outcome |= _kept(f"cosine {target:g}", target, _naive(*held, target), cosine, right)
    value = calibration.threshold_for(recall=0.9, alpha=None).value
    recall = float((p[right] >= value).double().mean())
    outcome |= {"recall 0.9": recall, "recall 0.9 kept": float(recall >= 0.9)}
    return outcome


def _threshold(find: Callable[[], float]) -> float | None:
    try:
        return find()
    except InputError:
        return None


def _kept(
    name: str, target: float, value: float | None, score: Tensor, right: Tensor
) -> dict[str, float | None]:
    outcome: dict[str, float | None] = {f"{name} made": float(value is not None)}
    accepted = torch.zeros_like(right) if value is None else score >= value
    precision = float(right[accepted].double().mean()) if bool(accepted.any()) else None
    outcome[f"{name} accepted"] = float(accepted.double().mean()) if value is not None else None
    outcome[f"{name} obtained"] = precision
    outcome[f"{name} kept"] = None if precision is None else float(precision >= target)
    return outcome


def _naive(score: Tensor, right: Tensor, target: float) -> float | None:
    order = score.argsort(descending=True)
    precision = right[order].double().cumsum(0) / torch.arange(1, len(order) + 1)
    good = (precision >= target).nonzero()
    return float(score[order][good[-1, 0]]) if len(good) else None


def coverage(
    calibration: Calibration, test: LabelledHits, logit: Tensor, labels: Tensor
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
        held = (members & test.match).any(1)[test.known].double()
        sizes = members.sum(1)[test.known].double()
        by_class = _by_class(held, labels[test.known])
        outcome |= {
            f"{name} coverage": float(held.mean()),
            f"{name} size": float(sizes.mean()),
            f"{name} empty": float((sizes == 0).double().mean()),
            f"{name} lowest class": float(by_class.quantile(0.1)),
        }
    return outcome


def _by_class(held: Tensor, labels: Tensor) -> Tensor:
    _, at = labels.unique(return_inverse=True)
    return torch.bincount(at, held) / torch.bincount(at)


def alarms(
    calibration: Calibration, test: LabelledHits, ood: dict[str, SearchHits]
) -> dict[str, float]:
    """Share of queries called unknown: with a match, of a label that is not there, OOD inputs."""
    p = calibration.assess(test.hits).p_value
    flagged = (p <= FALSE_ALARMS).double()
    outcome = {"unknown of known": float(flagged[test.known].mean())}
    if bool((~test.known).any()):
        outcome["unknown of missing"] = float(flagged[~test.known].mean())
        outcome["auroc missing"] = auroc(-p[test.known], -p[~test.known])
    for name, hits in ood.items():
        theirs = calibration.assess(hits).p_value
        outcome[f"unknown of {name}"] = float((theirs <= FALSE_ALARMS).double().mean())
        outcome[f"auroc {name}"] = auroc(-p[test.known], -theirs)
    return outcome


def curve(score: Tensor, right: Tensor) -> list[float]:
    """Precision among the best scored of each of ``SHARES``."""
    order = score.argsort(descending=True)
    kept = [max(1, round(share * len(order))) for share in SHARES]
    return [float(right[order[:n]].double().mean()) for n in kept]


def binned(reliability: Reliability) -> dict[str, list[float]]:
    """Sums over each bin, which add up over splits: queries, probabilities said, matches."""
    count = reliability.bin_count.double()
    said, right = (
        (values.nan_to_num(nan=0.0) * count).tolist()
        for values in (reliability.bin_confidence, reliability.bin_accuracy)
    )
    return {"bin queries": count.tolist(), "bin said": said, "bin right": right}
