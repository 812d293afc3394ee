"""A calibration from held-out queries: one half teaches, the other half keeps it honest."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.validation import as_path
from laplace_metric.calibration._apply import Candidates, LabelPosterior
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._calibrators import CALIBRATORS, Calibrator, Score
from laplace_metric.calibration._columns import Column
from laplace_metric.calibration._conformal import (
    HeldOutLabels,
    first_match_score,
    label_scores,
    least_common_p_values,
    own_p_values,
)
from laplace_metric.calibration._hits import (
    FEATURE_SETS,
    FEATURES,
    LabelledHits,
    PairFeatures,
    query_statistics,
)
from laplace_metric.calibration._probability import MatchProbability, fit_match_probability
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import MALFORMED, SEAL, sealed, write_atomically

LEAST_KNOWN = 5
"""Held-out queries with a match in the index that each half needs at the very least."""


def calibrated(
    labelled: LabelledHits,
    k: int,
    n_items: int,
    generator: torch.Generator,
    *,
    portable: bool = False,
    cross_fitted: bool = False,
) -> Calibration:
    """Split the queries in two and learn from each half; see ``fit_match_probability``.

    Raises
    ------
    InputError
        For too few queries.
    """
    order = torch.randperm(len(labelled), generator=generator, device=generator.device)
    halves = order.to(labelled.match.device).tensor_split(2)
    first, second = (labelled.take(rows) for rows in halves)
    _check(first, second)
    features = PairFeatures.of(first.hits)
    matcher = fit_match_probability(features.take(k), first.match[:, :k], portable=portable)
    logits = [matcher.logit(features), matcher.logit(PairFeatures.of(second.hits))]
    statistics, p_value = _strangeness(first, second)
    learnt = Calibration(
        matcher=matcher,
        labeller=None,
        k=k,
        depth=second.match.shape[1],
        n_items=n_items,
        logit=logits[1][:, :k],
        match=second.match[:, :k],
        known=second.known,
        first_match=first_match_score(logits[1], second.match),
        statistics=statistics,
        p_value=p_value,
        grid=matcher(logits[0][:, :1]),
        cross_fitted=cross_fitted,
    )
    if labelled.codes is None:
        return learnt
    labeller = LabelPosterior.fit(Candidates.of(logits[0], first.hits.voted), first.match)
    probability, right, labels = _of_labels(labeller, (first, logits[0]), (second, logits[1]))
    answered = labeller.answer(Candidates.of(logits[0], first.hits.voted))[1]
    return replace(
        learnt,
        labeller=labeller,
        grid=torch.cat([learnt.grid, answered[:, None]], 1),
        label_probability=probability,
        right=right,
        labels=labels,
    )


def _strangeness(first: LabelledHits, second: LabelledHits) -> tuple[Tensor, Tensor]:
    """Statistics [m, 3] of the known queries of both; p-values [n] of the second half.

    A known query is judged by the others, as the next query is by all of them.
    """
    ours, theirs = (query_statistics(half.hits) for half in (first, second))
    statistics = torch.cat([ours[first.known], theirs[second.known]])
    p_value = torch.empty(len(theirs), dtype=torch.float64, device=theirs.device)
    own = own_p_values(statistics)[int(first.known.sum()) :]
    p_value[second.known] = own
    p_value[~second.known] = least_common_p_values(statistics, theirs[~second.known])
    return statistics, p_value


Half = tuple[LabelledHits, Tensor]
"""Queries, and the scores of their pairs."""


def _of_labels(
    labeller: LabelPosterior, first: Half, second: Half
) -> tuple[Tensor, Tensor, HeldOutLabels]:
    """Return probabilities of answers of the second half, whether right, and label scores."""
    held_out, logit = second
    answer, probability = labeller.answer(Candidates.of(logit, held_out.hits.voted))
    right = held_out.match.gather(1, answer[:, None])[:, 0]
    assert held_out.classes is not None
    scores = [number for half in (first, second) for number in _own_label_scores(labeller, *half)]
    return probability, right, HeldOutLabels(held_out.classes, *scores)


def _own_label_scores(
    labeller: LabelPosterior, labelled: LabelledHits, logit: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes and scores [n] of the labels of the known queries."""
    votes, known = labelled.hits.voted, labelled.known
    scores = label_scores(labeller(Candidates.of(logit, votes)), votes.labels)
    own = scores.masked_fill(~labelled.match, -torch.inf).amax(1)
    assert labelled.codes is not None
    return labelled.codes[known].cpu(), own[known].cpu()


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of one half have a match in the index: at least {LEAST_KNOWN} are "
            "needed. Pass more queries that have one."
        )


# A calibration as one JSON file of numbers, for services that have no index.


FORMAT, VERSION = "laplace_metric.calibration", 2
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
DTYPES |= {"bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32}
"""Of the numbers that a calibration holds."""


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write one JSON file: weights, knots, held-out statistics. ``read_calibration`` reads it.

    Raises
    ------
    InputError
        For anything but a calibration.
    WriteError
        If it cannot be written; an old file is kept.

    Examples
    --------
    >>> import tempfile
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[100:200], y[100:200], progress=False)
    >>> calibration = index.calibrate(x[200:300], y[200:300])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration(calibration, f"{folder}/calibration.json")
    ...     again = read_calibration(f"{folder}/calibration.json")
    >>> torch.equal(again.probability, calibration.probability)
    True
    """
    if not isinstance(calibration, Calibration):
        raise InputError(f"calibration is a {type(calibration).__name__}: pass index.calibration.")
    content, tensors = calibration_to_json(calibration)
    numbers = {name: _to_json(tensor) for name, tensor in tensors.items()}
    whole = {"format": FORMAT, "version": VERSION, "calibration": content, "tensors": numbers}
    write_atomically(as_path("path", path), json.dumps(sealed(whole), allow_nan=False))


def read_calibration(path: str | Path) -> Calibration:
    """Read the file of ``write_calibration``.

    Raises
    ------
    FileFormatError
        For a file that is not ours, damaged or newer.
    """
    file = as_path("path", path)
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        ours = (whole["format"], repr(whole["version"])) == (FORMAT, str(VERSION))
        if not ours or sealed(whole)[SEAL] != whole[SEAL]:
            raise FileFormatError(f"{file} is no calibration of version {VERSION}, or was changed.")
        tensors = {name: _from_json(value) for name, value in whole["tensors"].items()}
        return calibration_from_json(whole["calibration"], tensors)
    except (OSError, *MALFORMED) as error:
        raise FileFormatError(f"{file} is no calibration that can be read: {error}.") from error


def _to_json(tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    values = [_finite(x) for x in tensor.detach().cpu().flatten().tolist()]
    return {"dtype": dtype, "shape": list(tensor.shape), "values": values}


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def _from_json(value: dict[str, Any]) -> Tensor:
    numbers = [float(x) if isinstance(x, str) else x for x in value["values"]]
    return torch.tensor(numbers, dtype=DTYPES[value["dtype"]]).reshape(value["shape"])


# A calibration as JSON and tensors, and back.


COUNTS = ("k", "depth", "n_items")
PER_QUERY = ("logit", "match", "known", "first_match", "statistics", "p_value", "grid")
PER_ANSWER = ("label_probability", "right")
PER_FEATURE = ("weights", "low", "cap")
PER_LABEL = ("clustering_codes", "clustering_scores", "codes", "scores")
CLASSES = "classes"
PREFIX = "calibration."


def calibration_to_json(calibration: Calibration) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a calibration into JSON content and tensors."""
    matcher, score = calibration.matcher, calibration.matcher.score
    content: dict[str, Any] = {name: getattr(calibration, name) for name in COUNTS}
    content |= {"features": matcher.feature_set, "calibrator": matcher.calibrator.kind}
    content |= {"offset": score.offset, "cross_fitted": calibration.cross_fitted}
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    tensors = {name: getattr(calibration, name) for name in PER_QUERY}
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
    """Build a calibration from the result of ``calibration_to_json``.

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
    fields["cross_fitted"] = content["cross_fitted"]
    if type(fields["cross_fitted"]) is not bool:
        raise ValueError(f"a calibration with cross_fitted {fields['cross_fitted']!r:.60}")
    fields |= {key: stored[key] for key in PER_QUERY}
    if "labeller" not in stored:  # calibrated with matches
        return Calibration(matcher, None, **fields)
    fields |= {key: stored[key] for key in PER_ANSWER}
    labeller, labels = LabelPosterior(stored["labeller"]), _labels_from_tensors(stored)
    return Calibration(matcher, labeller, **fields, labels=labels)


def _labels_from_tensors(stored: dict[str, Tensor]) -> HeldOutLabels:
    classes = Column.from_tensors(CLASSES, stored)
    if classes is None:
        raise ValueError("a calibration without the classes of its labels")
    numbers = {name: stored[f"label_{name}"] for name in PER_LABEL}
    for kind in ("clustering_", ""):
        codes, scores = numbers[f"{kind}codes"], numbers[f"{kind}scores"]
        beyond = bool(((codes < 0) | (codes >= len(classes))).any())
        if codes.shape != scores.shape or beyond or bool(scores.isnan().any()):
            raise ValueError(f"label scores of {len(codes)} queries of {len(classes)} classes")
    return HeldOutLabels(classes, **numbers)
