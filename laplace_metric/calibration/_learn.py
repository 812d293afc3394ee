"""A calibration from held-out queries: fitted on one half, tested on the other; and its file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from laplace_metric._utils.validation import as_path
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._conformal import (
    first_match_score,
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
from laplace_metric.calibration._labels import (
    Candidates,
    HeldOutLabels,
    LabelPosterior,
    label_scores,
)
from laplace_metric.calibration._probability import (
    CALIBRATORS,
    Calibrator,
    MatchProbability,
    Score,
    fit_match_probability,
)
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import MALFORMED, SEAL, sealed, write_atomically

LEAST_KNOWN = 5
"""Held-out queries with a match in the index that each half needs at the very least."""
Arrays = dict[str, npt.NDArray[Any]]


def calibrated(
    labelled: LabelledHits,
    k: int,
    n_items: int,
    order: npt.NDArray[np.int64],
    *,
    portable: bool = False,
    cross_fitted: bool = False,
) -> Calibration:
    """Fit to the first half of the queries in ``order`` [Q], and keep the second to test with.

    Raises
    ------
    InputError
        For too few queries.
    """
    if portable and labelled.hits.votes is not None:  # no other engine has a class model
        votes = replace(labelled.hits.votes, class_odds=None)
        labelled = replace(labelled, hits=replace(labelled.hits, votes=votes))
    first, second = (labelled.take(rows) for rows in np.array_split(order, 2))
    _check(first, second)
    features = PairFeatures.of(first.hits)
    matcher = fit_match_probability(features.take(k), first.match[:, :k], portable=portable)
    logits = matcher.logit(features), matcher.logit(PairFeatures.of(second.hits))
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
    if labelled.codes is None or labelled.classes is None:
        return learnt
    ours, theirs = (
        Candidates.of(logit, half.hits.voted)
        for logit, half in zip(logits, (first, second), strict=True)
    )
    labeller = LabelPosterior.fit(ours, first.match)
    answer, probability = labeller.answer(theirs)
    clustering_codes, clustering_scores = _own_label_scores(labeller, first, ours)
    codes, scores = _own_label_scores(labeller, second, theirs)
    return replace(
        learnt,
        labeller=labeller,
        grid=np.column_stack([learnt.grid, labeller.answer(ours)[1]]),
        label_probability=probability,
        right=np.take_along_axis(second.match, answer[:, None], 1)[:, 0],
        labels=HeldOutLabels(labelled.classes, clustering_codes, clustering_scores, codes, scores),
    )


def _strangeness(
    first: LabelledHits, second: LabelledHits
) -> tuple[Float[np.ndarray, "m 3"], Float[np.ndarray, " n"]]:
    """Statistics [m, 3] of the known queries of both; p-values [n] of the second half.

    A known query is assessed by the others, as the next query is by all of them.
    """
    ours, theirs = (query_statistics(half.hits) for half in (first, second))
    statistics = np.concatenate([ours[first.known], theirs[second.known]])
    p_value = np.empty(len(theirs))
    p_value[second.known] = own_p_values(statistics)[int(first.known.sum()) :]
    p_value[~second.known] = least_common_p_values(statistics, theirs[~second.known])
    return statistics, p_value


def _own_label_scores(
    labeller: LabelPosterior, labelled: LabelledHits, candidates: Candidates
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Codes and scores [n] of the labels of the known queries."""
    scores = label_scores(labeller(candidates), labelled.hits.voted.labels)
    own = np.where(labelled.match, scores, -np.inf).max(1)
    assert labelled.codes is not None
    return labelled.codes[labelled.known], own[labelled.known]


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of one half have a match in the index: at least {LEAST_KNOWN} are "
            "needed. Pass more queries that have one."
        )


# A calibration as one JSON file of numbers, for services that have no index.


FORMAT, VERSION = "laplace_metric.calibration", 4
COUNTS = ("k", "depth", "n_items")
PER_QUERY = ("logit", "match", "known", "first_match", "statistics", "p_value", "grid")
PER_ANSWER = ("label_probability", "right")
PER_FEATURE = ("weights", "low", "cap")
PER_LABEL = ("clustering_codes", "clustering_scores", "codes", "scores")
DTYPES = {"match": "bool", "known": "bool", "right": "bool"}
DTYPES |= {"label_clustering_codes": "int64", "label_codes": "int64"}
"""Of the arrays of a calibration; the others are float64."""
PREFIX = "calibration."


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
    >>> import torch
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
    >>> np.array_equal(again.probability, calibration.probability)
    True
    """
    if not isinstance(calibration, Calibration):
        raise InputError(f"calibration is a {type(calibration).__name__}: pass index.calibration.")
    content, arrays = calibration_to_json(calibration)
    numbers = {name: _to_json(array) for name, array in arrays.items()}
    whole = {"format": FORMAT, "version": VERSION, "calibration": content, "arrays": numbers}
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
        arrays = {name: _from_json(value) for name, value in whole["arrays"].items()}
        return calibration_from_json(whole["calibration"], arrays)
    except (OSError, *MALFORMED) as error:
        raise FileFormatError(f"{file} is no calibration that can be read: {error}.") from error


def _to_json(array: npt.NDArray[Any]) -> dict[str, Any]:
    values = [x if math.isfinite(x) else str(x) for x in array.ravel().tolist()]  # no infinity
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}


def _from_json(value: dict[str, Any]) -> npt.NDArray[Any]:
    numbers = [float(x) if isinstance(x, str) else x for x in value["values"]]
    if value["dtype"] not in {"float64", *DTYPES.values()}:
        raise ValueError(f"numbers of type {value['dtype']!r:.60}")
    return np.array(numbers, dtype=value["dtype"]).reshape(value["shape"])


def calibration_to_json(calibration: Calibration) -> tuple[dict[str, Any], Arrays]:
    """Split a calibration into JSON content and arrays."""
    matcher, score = calibration.matcher, calibration.matcher.score
    content: dict[str, Any] = {name: getattr(calibration, name) for name in COUNTS}
    content |= {"features": matcher.feature_set, "calibrator": matcher.calibrator.kind}
    content |= {"offset": score.offset, "cross_fitted": calibration.cross_fitted}
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    arrays = {name: getattr(calibration, name) for name in PER_QUERY}
    arrays |= {name: getattr(score, name) for name in PER_FEATURE}
    arrays |= {"calibrator": matcher.calibrator.numbers}
    if calibration.labeller is not None and calibration.labels is not None:
        arrays |= {name: getattr(calibration, name) for name in PER_ANSWER}
        arrays |= {"labeller": calibration.labeller.numbers}
        arrays |= {f"label_{name}": getattr(calibration.labels, name) for name in PER_LABEL}
        content["classes"] = calibration.labels.classes.tolist()
    return content, {f"{PREFIX}{name}": np.asarray(array) for name, array in arrays.items()}


def calibration_from_json(content: dict[str, Any], arrays: Arrays) -> Calibration:
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
    if type(content["cross_fitted"]) is not bool:
        raise ValueError(f"a calibration with cross_fitted {content['cross_fitted']!r:.60}")
    stored = {k.removeprefix(PREFIX): a for k, a in arrays.items() if k.startswith(PREFIX)}
    for key, array in stored.items():
        if array.dtype != DTYPES.get(key, "float64"):
            raise ValueError(f"a calibration with {key} in {array.dtype}")
    numbers = {key: stored[key] for key in PER_FEATURE}
    if any(number.shape != (len(FEATURES),) for number in numbers.values()):
        raise ValueError(f"a calibration by {len(numbers['weights'])} features")
    losses = {key: (float(a), float(b)) for key, (a, b) in content["losses"].items()}
    queries: dict[str, Any] = {key: stored[key] for key in PER_QUERY}
    learnt = Calibration(
        MatchProbability(
            feature_set,
            Score(**numbers, offset=float(content["offset"])),
            Calibrator(name, stored["calibrator"]),
            losses,
        ),
        None,
        **{key: content[key] for key in (*COUNTS, "cross_fitted")},
        **queries,
    )
    if "labeller" not in stored:  # calibrated with matches
        return learnt
    labeller, labels = LabelPosterior(stored["labeller"]), _labels_from_json(content, stored)
    answers: dict[str, Any] = {key: stored[key] for key in PER_ANSWER}
    return replace(learnt, labeller=labeller, labels=labels, **answers)


def _labels_from_json(content: dict[str, Any], stored: Arrays) -> HeldOutLabels:
    listed = content["classes"]
    if {type(value) for value in listed} not in ({int}, {str}) or listed != sorted(set(listed)):
        raise ValueError("a calibration without the sorted classes of its labels")
    classes = np.array(listed, dtype=object if isinstance(listed[0], str) else np.int64)
    numbers = {name: stored[f"label_{name}"] for name in PER_LABEL}
    for kind in ("clustering_", ""):
        codes, scores = numbers[f"{kind}codes"], numbers[f"{kind}scores"]
        beyond = bool(((codes < 0) | (codes >= len(classes))).any())
        if codes.shape != scores.shape or beyond or bool(np.isnan(scores).any()):
            raise ValueError(f"label scores of {len(codes)} queries of {len(classes)} classes")
    return HeldOutLabels(classes, **numbers)
