"""One quantity of a stream: checked numbers, conformal p-values, and all that is kept of it.

The p-value of a value is its place from above among everything so far, the reference, the stream
and itself, ties broken by a uniform draw (Vovk, Gammerman and Shafer 2005, chapter 2). If all of
these are exchangeable, the p-values are independent and uniform on [0, 1], whatever the
distribution and with any ties. (A comparison with the reference alone is not: its p-values share
the reference and are dependent.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils.validation import ArrayLike, as_scores
from laplace_metric.errors import InputError
from laplace_metric.monitor._martingale import Alarm, Array, Martingale

LEAST = 30
"""Values of a reference and of a window, below which a test can hardly tell anything."""


def checked_reference(reference: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Each quantity [n] as float64, n at least ``LEAST``.

    Raises
    ------
    InputError
        For no mapping, or too few values.
    """
    if not isinstance(reference, Mapping) or not reference:
        raise InputError("reference is empty or no mapping: pass {name: values [n]}.")
    columns = {str(name): _numbers(f"reference[{name!r}]", x) for name, x in reference.items()}
    for name, values in columns.items():
        if len(values) < LEAST:
            raise InputError(f"reference[{name!r}] has {len(values)} values: pass {LEAST} or more.")
    return columns


def checked_values(values: Mapping[str, ArrayLike], names: tuple[str, ...]) -> dict[str, Array]:
    """Each of ``names`` [m] as float64, in that order.

    Raises
    ------
    InputError
        For other names, or columns of different lengths.
    """
    if not isinstance(values, Mapping) or set(values) != set(names):
        passed = sorted(map(str, values)) if isinstance(values, Mapping) else type(values)
        raise InputError(
            f"values holds {passed}, the reference {sorted(names)}: pass a mapping with the same "
            "names."
        )
    columns = {name: _numbers(f"values[{name!r}]", values[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"values has the lengths {lengths}: pass one number for each query.")
    return columns


def _numbers(name: str, values: ArrayLike) -> Array:
    column: Array = as_scores(name, values).cpu().numpy()
    return column


BLOCK = 256


class RunningRanks:
    """The place of each value of a stream among all before it.

    Parameters
    ----------
    values : [n]
        Everything so far, in any order.

    Examples
    --------
    >>> ranks = RunningRanks(np.array([1.0, 2.0, 3.0]))
    >>> ranks.p_values(np.array([2.5, 9.0]), np.array([0.5, 0.5]))
    array([0.375, 0.1  ])
    """

    def __init__(self, values: Array) -> None:
        self._sorted = np.sort(values)
        self._recent = np.empty(0)

    @property
    def values(self) -> Array:
        """Everything so far, sorted."""
        return np.sort(np.concatenate([self._sorted, self._recent]), kind="stable")

    def p_values(self, values: Array, draws: Array) -> Array:
        """p [m] of the next values [m]; small = large value. ``draws`` [m] in [0, 1) are for ties.

        Counts are whole numbers, so the result does not depend on how a stream is cut.
        """
        starts = range(0, len(values), BLOCK)
        blocks = [self._block(values[i : i + BLOCK], draws[i : i + BLOCK]) for i in starts]
        return np.concatenate([np.empty(0), *blocks])

    def _block(self, values: Array, draws: Array) -> Array:
        recent, first = np.concatenate([self._recent, values]), len(self._recent)
        places = first + np.arange(len(values))
        earlier = np.arange(len(recent)) < places[:, None]
        left, right = (np.searchsorted(self._sorted, values, side) for side in ("left", "right"))
        above = len(self._sorted) - right + (earlier & (recent > values[:, None])).sum(1)
        equal = right - left + (earlier & (recent == values[:, None])).sum(1)
        n = len(self._sorted) + places + 1
        self._recent = recent
        if len(recent) > 4 * BLOCK:
            self._sorted, self._recent = self.values, np.empty(0)
        return (above + draws * (equal + 1)) / n


class StreamState:
    """Reference, ranks, bets and the unfinished window of one quantity.

    Parameters
    ----------
    name : str
    reference : array [n]
    threshold : float
        Of the martingale.
    """

    def __init__(self, name: str, reference: Array, threshold: float) -> None:
        self.reference = reference
        self.ranks = RunningRanks(reference)
        self.martingale = Martingale(name, threshold)
        self.window = np.empty(0)

    def take(self, values: Array, draws: Array) -> None:
        """The next values [m], no more than the window still lacks; a full one begins anew."""
        self.martingale.update(self.ranks.p_values(values, draws))
        self.window = np.concatenate([self.window, values])

    def tensors(self) -> dict[str, Tensor]:
        """All that decides what comes next but the alarm."""
        bets = self.martingale
        arrays: dict[str, Any] = {"reference": self.reference, "values": self.ranks.values}
        arrays |= {"window": self.window, "bets": bets.bets, "best": bets.best, "since": bets.since}
        return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor], n: int, alarm: Alarm | None) -> None:
        """Go on from ``tensors`` after n queries."""
        bets = self.martingale
        self.ranks, self.window = RunningRanks(tensors["values"].numpy()), tensors["window"].numpy()
        bets.bets, bets.best, bets.since = (tensors[x].numpy() for x in ("bets", "best", "since"))
        bets.n, bets.alarm = n, alarm
