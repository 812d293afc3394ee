"""A calibration from held-out queries, tested by those that a fit did not see; and its file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric._utils.validation import as_path, check_count
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._hits import (
    FEATURE_SETS,
    FEATURES,
    LabelledHits,
    PairFeatures,
    joined_arrays,
    mapped_arrays,
    query_statistics,
)
from laplace_metric.calibration._labels import (
    Candidates,
    HeldOutLabels,
    LabelPosterior,
    first_match_score,
    label_scores,
    least_common_p_values,
    own_p_values,
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
LEAST = 20
"""Held-out queries, half of which or more are fitted."""
PARTS, MOST_PARTS = 5, 20
FEW = 1_000
"""Queries from which on halves guarantee much: fewer are cross-fitted."""
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class _Fit:
    """A match probability and, of labels, the pool of evidence for them."""

    matcher: MatchProbability
    labeller: LabelPosterior | None

    @classmethod
    def to(
        cls, labelled: LabelledHits, k: int, *, portable: bool, like: _Fit | None = None
    ) -> _Fit:
        """``like``: a fit to more queries, whose choices are taken over."""
        features, chosen = PairFeatures.of(labelled.hits), None if like is None else like.matcher
        matcher = fit_match_probability(
            features.take(k), labelled.match[:, :k], portable=portable, like=chosen
        )
        if labelled.codes is None:
            return cls(matcher, None)
        candidates = Candidates.of(matcher.logit(features), labelled.hits.voted)
        return cls(matcher, LabelPosterior.fit(candidates, labelled.match))

    def judge(self, labelled: LabelledHits, k: int) -> _Judged:
        logit = self.matcher.logit(PairFeatures.of(labelled.hits))
        first_match = first_match_score(logit, labelled.match)
        judged = _Judged(self.matcher(logit[:, :k]), first_match)
        if self.labeller is None:
            return judged
        candidates = Candidates.of(logit, labelled.hits.voted)
        answer, probability = self.labeller.answer(candidates)
        scores = label_scores(self.labeller(candidates), labelled.hits.voted.labels)
        return replace(
            judged,
            label_probability=probability,
            right=np.take_along_axis(labelled.match, answer[:, None], 1)[:, 0],
            own_label=np.where(labelled.match, scores, -np.inf).max(1),
        )


@dataclass(frozen=True)
class _Judged:
    """Fields of a ``Calibration`` of the same names, and the score [Q] of each own label."""

    probability: Float[np.ndarray, "Q k"]
    first_match: Float[np.ndarray, " Q"]
    label_probability: Float[np.ndarray, " Q"] | None = None
    right: Bool[np.ndarray, " Q"] | None = None
    own_label: Float[np.ndarray, " Q"] | None = None


def calibrated(
    labelled: LabelledHits,
    k: int,
    n_items: int,
    order: npt.NDArray[np.int64],
    *,
    cross_fit: int | None = None,
    portable: bool = False,
    own_items: bool = False,
) -> Calibration:
    """Fit to the queries in ``order`` [Q], and test by queries that a fit did not see.

    Parameters
    ----------
    cross_fit : int or None
        0: the fit to the first half is kept, and the second half tests it. Else the fit to all is
        kept, and each of so many parts tests a fit to the others. None: ``PARTS`` of fewer than
        ``FEW`` queries.

    Raises
    ------
    InputError
        For too few queries, or one part or more than 20.
    """
    if cross_fit is None:
        cross_fit = PARTS if len(order) < FEW else 0
    if cross_fit and check_count("cross_fit", cross_fit, least=2) > MOST_PARTS:
        raise InputError(f"cross_fit={cross_fit}: pass 0, or from 2 to {MOST_PARTS} parts.")
    if portable and labelled.hits.votes is not None:  # no other engine has a class model
        votes = replace(labelled.hits.votes, class_odds=None)
        labelled = replace(labelled, hits=replace(labelled.hits, votes=votes))
    if len(order) < LEAST:
        raise InputError(f"{len(order)} queries to calibrate on: pass at least {LEAST}.")
    labelled, rows = labelled.take(order), np.arange(len(order))
    first, second = np.array_split(rows, 2)
    _check(labelled.take(first), labelled.take(second))
    if cross_fit:
        kept, tested, tests = _Fit.to(labelled, k, portable=portable), rows, []
        for part in np.array_split(rows, cross_fit):
            others = labelled.take(np.delete(rows, part))
            fit = _Fit.to(others, k, portable=portable, like=kept)
            tests.append(fit.judge(labelled.take(part), k))
        judged: _Judged = joined_arrays(tests)
    else:
        kept, tested = _Fit.to(labelled.take(first), k, portable=portable), second
        judged = kept.judge(labelled, k)
    test = mapped_arrays(judged, lambda values: values[tested])
    tops = [p for p in (judged.probability[:, 0], judged.label_probability) if p is not None]
    statistics, known = query_statistics(labelled.hits), labelled.known
    p_value = np.empty(len(known))
    p_value[known] = own_p_values(statistics[known])  # by the others, as the next query by all
    p_value[~known] = least_common_p_values(statistics[known], statistics[~known])
    labels = None
    if labelled.codes is not None and labelled.classes is not None:
        assert judged.own_label is not None
        halves = [half[known[half]] for half in (first, second)]
        of_halves = [(labelled.codes[half], judged.own_label[half]) for half in halves]
        labels = HeldOutLabels(labelled.classes, *of_halves[0], *of_halves[1])
    return Calibration(
        matcher=kept.matcher,
        labeller=kept.labeller,
        k=k,
        depth=labelled.match.shape[1],
        n_items=n_items,
        probability=test.probability,
        match=labelled.match[tested, :k],
        known=known[tested],
        first_match=test.first_match,
        statistics=statistics[known],
        p_value=p_value[tested],
        grid=np.column_stack(tops)[[] if cross_fit else first],
        label_probability=test.label_probability,
        right=test.right,
        labels=labels,
        own_items=own_items,
    )


def _check(*halves: LabelledHits) -> None:
    n_known = min(int(half.known.sum()) for half in halves)
    if n_known < LEAST_KNOWN:
        raise InputError(
            f"{n_known} queries of a random half have a match in the index: at least {LEAST_KNOWN} "
            "are needed. Pass more queries that have one."
        )


# A calibration as one JSON file of numbers, for services that have no index.


FORMAT, VERSION = "laplace_metric.calibration", 5
COUNTS = ("k", "depth", "n_items")
PER_QUERY = ("probability", "match", "known", "first_match", "statistics", "p_value", "grid")
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
    content |= {"offset": score.offset, "own_items": calibration.own_items}
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
    if type(content["own_items"]) is not bool:
        raise ValueError(f"a calibration with own_items {content['own_items']!r:.60}")
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
        **{key: content[key] for key in (*COUNTS, "own_items")},
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
