"""Bootstrap interval of any metric: its spread over resampled queries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    ArrayLike,
    as_array,
    check_count,
    check_dense,
    check_function,
    check_share,
)
from laplace_metric.errors import InputError, UndefinedMetricWarning, callers_line

# How sure a reported number is: bootstrap intervals.


@dataclass(frozen=True, repr=False)
class BootstrapInterval(Shown):
    """Metric with its percentile interval.

    Attributes
    ----------
    estimate : float
        Metric of the data themselves; NaN (with a warning) where it is undefined.
    low, high : float
        Ends of the interval; NaN (with a warning) when no resample defines the metric.
    level : float
        Coverage of the interval, such as 0.95.
    n, n_undefined : int
        Numbers of resamples drawn, and of those left out because the metric was NaN on them.
    """

    estimate: float
    low: float
    high: float
    level: float
    n: int
    n_undefined: int


def bootstrap_interval(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    n: int = 1000,
    level: float = 0.95,
    paired: bool = True,
    seed: Seed = None,
) -> BootstrapInterval:
    """Compute the percentile bootstrap interval (Efron & Tibshirani 1993, ch. 13) of a metric.

    Parameters
    ----------
    metric : callable
        Function of the arrays, resampled along their first axis, in their own type; it returns a
        float. If that is infinite, so is the estimate or the end of the interval.
    arrays : [N, ...] each
        Data of the metric. Tensors stay tensors, anything else becomes a numpy array.
    n : int
        Number of resamples. Default: 1000; more make the ends steadier.
    level : float
        Coverage of the interval, between 0 and 1. Default: 0.95.
    paired : bool
        True, the default, draws the same rows of every array (an uncertainty and whether its query
        is right). False draws each array on its own, keeping its size (scores in and out of
        distribution).
    seed : torch.Generator or int, optional
        Generator or seed of the resamples. None, the default: a fresh one with a fixed seed, so
        that the same data give the same interval.

    Returns
    -------
    BootstrapInterval

    Raises
    ------
    InputError
        No array, empty arrays, lengths that differ although paired, or a metric that gives no
        number.

    Examples
    --------
    >>> interval = bootstrap_interval(lambda x: x.mean(), [0.0, 1.0, 1.0, 1.0], n=200)
    >>> interval.estimate, interval.low >= 0.0, interval.high
    (0.75, True, 1.0)
    """
    share = check_share("level", level)
    drawn = bootstrap_replicates(metric, *arrays, n=n, paired=paired, seed=seed).numpy()
    defined, low, high = drawn[~np.isnan(drawn)], math.nan, math.nan
    if len(defined):
        low, high = np.quantile(defined, [(1 - share) / 2, (1 + share) / 2]).tolist()
    else:
        message = "the metric is NaN on every resample: the interval is NaN."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=callers_line())
    data = [_rows(f"arrays[{i}]", array) for i, array in enumerate(arrays)]
    estimate = _number(metric, data)
    if math.isnan(estimate):
        message = "the metric is NaN on the data themselves: so is the estimate."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=callers_line())
    return BootstrapInterval(estimate, low, high, share, len(drawn), len(drawn) - len(defined))


def bootstrap_replicates(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    n: int = 1000,
    paired: bool = True,
    seed: Seed = None,
) -> Float[Tensor, " n"]:
    """Compute the metric [n] of each resample, float64; NaN where it is undefined.

    Arguments and errors as for `bootstrap_interval`, which is their percentiles. Arrays of equal
    lengths are resampled alike whenever the generator starts alike (without one, always): the
    replicates of two methods on the same queries can be subtracted one by one.

    Raises
    ------
    InputError
        As `bootstrap_interval`.

    Examples
    --------
    >>> bootstrap_replicates(lambda x: x.mean(), [0.0, 1.0, 1.0, 1.0], n=3).shape
    torch.Size([3])
    """
    count = check_count("n", n)
    data = [_rows(f"arrays[{i}]", array) for i, array in enumerate(arrays)]
    if not data:
        raise InputError("arrays is empty: pass the metric's arrays after the metric.")
    lengths = [len(rows) for rows in data]
    if paired and len(set(lengths)) > 1:
        raise InputError(
            f"arrays have lengths {lengths}: pass equal lengths, or paired=False for samples "
            "that are independent."
        )
    check_function("metric", metric, *(f"arrays[{i}]" for i in range(len(arrays))))
    source = as_generator(seed) or torch.Generator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        drawn = [_number(metric, _resample(data, paired, source)) for _ in range(count)]
    return torch.tensor(drawn, dtype=torch.float64)


def _rows(name: str, array: ArrayLike) -> Any:
    rows: Any = check_dense(name, array) if isinstance(array, Tensor) else as_array(name, array)
    if rows.ndim == 0 or 0 in rows.shape:
        raise InputError(f"{name} is empty, shape {tuple(rows.shape)}: pass at least one row.")
    return rows


def _number(metric: Callable[..., float], data: Sequence[Any]) -> float:
    """Return the metric of these arrays, which must be one number; NaN where it is undefined."""
    value: Any = metric(*data)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"metric gave {value!r:.60}: let it return one number.") from error


def _resample(data: Sequence[Any], paired: bool, generator: torch.Generator) -> list[Any]:
    """Draw the rows of each array with replacement."""
    chosen = _draw(len(data[0]), generator)
    return [_take(rows, chosen if paired else _draw(len(rows), generator)) for rows in data]


def _draw(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(size, (size,), generator=generator, device=generator.device)


def _take(rows: Any, chosen: Tensor) -> Any:
    return rows[chosen.to(rows.device)] if isinstance(rows, Tensor) else rows[chosen.cpu().numpy()]
