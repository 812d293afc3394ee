"""Hits of any engine: arrays in, arrays out, no index.

An engine gives distances ``d_ij = |m_i - m_j|`` and labels ``l_ij`` of the k nearest items; the
query's epistemic number comes from the embedder, or from an exported graph. With the standard
deviation of a distance nothing else enters a calibration (``PairFeatures``).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from laplace_metric._utils.validation import as_array, as_floats, is_tensor
from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration._padding import is_padding
from laplace_metric.calibration.labels._votes import LabelVotes
from laplace_metric.calibration.scores._score_scale import ENOUGH, ROOTS, explanation
from laplace_metric.errors import DistanceScaleWarning, InputError, NonFiniteError, callers_line

MOST_FALL = 0.5
"""Share of queries whose first neighbour may be the farthest: none, but for ties and rounding."""


def given_hits(distances: Any, labels: Any, epistemic: Any, distance_sd: Any) -> SearchHits:
    """Return arrays of any kind as hits; columns that are not given get numbers without weight.

    Raises
    ------
    InputError
        For other shapes and NaN.
    """
    distance = _pairs("distances", distances)
    _check_ascending(distance)
    exists = np.isfinite(distance)
    spread = np.ones_like(distance)
    if distance_sd is not None:
        spread = _pairs("distance_sd", distance_sd)
        if spread.shape != distance.shape:
            raise InputError(f"distance_sd is {list(spread.shape)}: pass {list(distance.shape)}.")
    votes = None
    if labels is not None:
        codes = np.unique(given_labels(labels, distance.shape), return_inverse=True)[1]
        votes = LabelVotes.of(distance, np.where(exists, codes.reshape(distance.shape), -1))
    return SearchHits(
        np.where(exists, 0, -1),
        distance,
        np.where(exists, spread, np.inf),
        None,
        _per_query("epistemic", epistemic, len(distance)),
        votes,
    )


def given_labels(labels: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return whole numbers or strings [Q, k]."""
    array = as_array("labels", labels.detach().cpu().numpy() if is_tensor(labels) else labels)
    if array.dtype == object:
        array = array.astype(str)
    if array.shape != shape or array.dtype.kind not in "iuU":
        raise InputError(
            f"labels are {array.dtype} of shape {array.shape}: pass whole numbers or strings "
            f"{list(shape)}, those of the neighbours; anything where there is none."
        )
    return array


def like(array: Any, given: Any) -> Any:
    """Return the array, or its tensor on the device of ``given`` if that is a tensor."""
    if array is None or not is_tensor(given) or array.dtype.kind == "U":
        return array
    return namespace(given).from_numpy(array).to(given.device)


def warn_if_scaled(hits: SearchHits, nearest: Float[np.ndarray, " m"]) -> None:
    """Warn where distances are unlike ``nearest`` [m], those of the calibration, but for scale.

    Squares: their roots are like ``nearest`` (``explanation``). Another scale: the median is ten
    times beyond all of them.
    """
    ours = hits.distance.min(1)
    if len(ours) < ENOUGH or not np.isfinite(hits.distance[:, 0]).all():
        return
    middle = float(np.quantile(ours, 0.5, method="lower"))
    least, most = float(nearest.min()), float(nearest.max())
    told = f"distances: the nearest items are {middle:.3g} away (median of these queries), "
    told += f"those of the queries that calibrated {least:.3g} to {most:.3g}"
    if explanation(ours, nearest, [ROOTS]):
        told += f"; {ROOTS}."
    elif middle > 10 * most or middle < least / 10:
        told += ". Pass Euclidean distances of the same embeddings, in the same units."
    else:
        return
    warnings.warn(told, DistanceScaleWarning, stacklevel=callers_line())


def _pairs(name: str, values: Any) -> Float[np.ndarray, "Q k"]:
    """Return distances from 0 on; infinite where there is no neighbour, however that is written."""
    pairs = as_floats(name, values)
    if pairs.ndim != 2 or not pairs.shape[1]:
        raise InputError(f"{name} has shape {pairs.shape}: pass [Q, k].")
    if np.isnan(pairs).any():
        raise NonFiniteError(f"{name} holds NaN: pass inf where there is no neighbour.")
    if (pairs < 0).any():
        raise InputError(
            f"{name} is below 0: pass Euclidean distances; of a cosine s, sqrt(2 - 2 s)."
        )
    return np.where(is_padding(pairs), np.inf, pairs)


def _check_ascending(distance: Float[np.ndarray, "Q k"]) -> None:
    """Similarities fall from neighbour to neighbour: the first is the largest, the last is less."""
    exists = np.isfinite(distance)
    first, largest = distance[:, 0], np.where(exists, distance, -np.inf).max(1)
    at = exists.sum(1, keepdims=True).clip(1) - 1
    last = np.take_along_axis(distance, at, 1)[:, 0]
    falls = (first == largest) & (last < first)
    if len(distance) and falls.mean() > MOST_FALL:
        raise InputError(
            "distances fall from neighbour to neighbour, as similarities do: pass Euclidean "
            "distances, nearest first; of a cosine s, sqrt(2 - 2 s)."
        )


def _per_query(name: str, values: Any, n: int) -> Float[np.ndarray, " Q"]:
    numbers = as_floats(name, values)
    if numbers.shape != (n,):
        raise InputError(f"{name} has shape {numbers.shape}: pass [{n}], one a query.")
    if not np.isfinite(numbers).all():
        raise NonFiniteError(f"{name} holds NaN or infinity: check those queries.")
    return numbers
