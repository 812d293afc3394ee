"""``Monitor``: a stream of queries against a reference, window by window and for ever.

The p-value of a value is its place from above among everything so far, the reference, the stream
and itself, ties broken by a uniform draw (Vovk, Gammerman and Shafer 2005, chapter 2). If all of
these are exchangeable, the p-values are independent and uniform on [0, 1], whatever the
distribution and with any ties. (A comparison with the reference alone is not: its p-values share
the reference and are dependent.)

A bet against exchangeability that can be watched for ever.

Vovk 2021 ("Testing randomness online"); Shafer and Vovk 2019.

One unit of money is bet against conformal p-values. Its value is a martingale as long as they are
independent and uniform, so by Ville's inequality it EVER reaches ``1 / a`` with probability at
most ``a``: over the draw of reference and stream, and at any length of the stream.

Each bet says that p falls into a region more often than it should,

    f(p) = 1 - s + s / |R| for p in R, else 1 - s,     R: a share of the largest or of the smallest
                                                       values, or the middle half;  s: the stake

and the money is spread over all bets and all times at which a change may begin: the share
``1 / log2(t + 1) - 1 / log2(t + 2)`` is kept for a change at query t (they sum to 1). So a change
after T quiet queries costs about ``log T`` of evidence, not ``T``: a single bet that has run since
the first query would have lost nearly everything by then.

Several quantities have a martingale each, at ``a / Q``: the p-values of one are independent of
their own past, not of that of the others, so the mean of the martingales need not be one.

One window against the reference: a two-sample test that sees the tails.

A p-value is three times the smallest of three: Kolmogorov-Smirnov, which sees that the bulk has
shifted, and the number of the window's values among the largest, and among the smallest, 5 % of
both samples together, which is hypergeometric. A few out-of-distribution queries change the tail
alone, which Kolmogorov-Smirnov sees late (compared in ``benchmarks/retrieval``). Ties make each
test more careful, never less.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, log1p, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from laplace_metric import io as files
from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    ArrayLike,
    as_path,
    as_scores,
    check_count,
    check_share,
)
from laplace_metric.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from laplace_metric.plots import Figure

__all__ = ["Alarm", "Monitor", "WindowReport"]


MONITOR = files.FileKind("monitor", "a saved monitor", 1)
LEAST = 30
"""Values of a reference and of a window, below which a test can hardly tell anything."""
BETS = ("bets", "best", "since")
"""Arrays of a martingale."""


class Monitor(Shown):
    """Tells when a stream's uncertainty, or any other number of each query, leaves its reference.

    Two answers with one rate ``a = false_alarms``, each true if the reference and the stream are
    exchangeable (drawn from one distribution, independently) as long as nothing drifts:

    - each full window is compared with the reference by a two-sample test of level
      a: of all windows without drift, a share of at most about a is said to have drifted. Windows
      share the reference, so with an unlucky one that share is larger for all of them; this
      matters less the larger the reference is beside the window.
    - the evidence against "no drift" since the first query (a martingale) raises an ``Alarm``,
      at any query, once. The probability that this EVER happens without drift is at most a, however
      long the stream is: here reference and repeated looks are accounted for. Each of Q quantities
      may use ``a / Q`` of it.

    Neither holds for a reference that the model was trained or fitted on, nor for queries that
    depend on each other, such as neighbouring frames of a video or bursts of one user: take one of
    many frames, or shuffle over a span of time in which drift does not matter.

    Every value is kept, 8 bytes of it, for the next ones are ranked among all. The drift becomes
    part of what they are ranked among, so after an alarm begin anew with a reference of today.

    Parameters
    ----------
    reference : mapping of name to [n]
        Held-out values, at least 30 of each quantity; take several times the window.
    window : int
        Queries a window, at least 30.
    false_alarms : float in (0, 1)
    generator : torch.Generator or seed, optional
        Of the CPU, for the draws that break ties; None: a fresh one with a fixed seed. It moves on
        with every query.

    Attributes
    ----------
    reports : list of WindowReport
        Of every full window so far.

    Raises
    ------
    InputError, NonFiniteError
        For an empty or too small reference, NaN, and numbers out of range.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> monitor = Monitor({"uncertainty": torch.rand(2000, generator=generator)}, window=200)
    >>> [report] = monitor.update({"uncertainty": torch.rand(250, generator=generator)})
    >>> report.drifted, monitor.alarms
    ((), ())
    >>> more = monitor.update({"uncertainty": 1.5 * torch.rand(400, generator=generator)})
    >>> [report.drifted for report in more], monitor.alarms[0].at
    ([('uncertainty',), ('uncertainty',)], 260)
    """

    def __init__(
        self,
        reference: Mapping[str, ArrayLike],
        *,
        window: int = 500,
        false_alarms: float = 0.01,
        generator: Seed = None,
    ) -> None:
        self.window = check_count("window", window, LEAST)
        self.false_alarms = check_share("false_alarms", false_alarms)
        source = as_generator(generator)
        self.generator = torch.Generator() if source is None else source
        self.reports: list[WindowReport] = []
        if not isinstance(reference, Mapping) or not reference:
            raise InputError("reference is empty or no mapping: pass {name: values [n]}.")
        threshold = float(np.log(len(reference) / self.false_alarms))
        self.streams: dict[str, Stream] = {}
        for name, values in reference.items():
            column = as_scores(f"reference[{name!r}]", values).cpu().numpy()
            if len(column) < LEAST:
                raise InputError(
                    f"reference[{name!r}] has {len(column)} values: pass {LEAST} or more."
                )
            self.streams[str(name)] = Stream(str(name), column, threshold)

    def _sentence(self) -> str:
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        return f"{self.n:,} queries so far, {alarms}."

    def _shown_rows(self) -> Rows:
        shown = {"watches": ", ".join(self.streams), "window": self.window}
        return in_rows({**shown, "false alarms": self.false_alarms}.items())

    @property
    def n(self) -> int:
        """Queries so far."""
        return next(iter(self.streams.values())).martingale.n

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """At most one of each quantity, the earliest first."""
        alarms = [stream.martingale.alarm for stream in self.streams.values()]
        return tuple(sorted((a for a in alarms if a is not None), key=lambda alarm: alarm.at))

    def update(self, values: Mapping[str, ArrayLike]) -> list[WindowReport]:
        """Take the next queries in; their number is free and changes no result.

        Parameters
        ----------
        values : mapping of name to [m]
            Every name of the reference, in the order of the queries.

        Returns
        -------
        list of WindowReport
            One for each window that these queries complete. ``alarms`` is up to date after every
            call, full window or not.

        Raises
        ------
        InputError
            For other names, columns of different lengths, and NaN (a ``NonFiniteError``). Then
            nothing of ``values`` was taken in.
        """
        if not isinstance(values, Mapping) or values.keys() != self.streams.keys():
            passed = sorted(map(str, values)) if isinstance(values, Mapping) else type(values)
            raise InputError(
                f"values holds {passed}, the reference {sorted(self.streams)}: pass a mapping with "
                "the same names."
            )
        columns = [as_scores(f"values[{x!r}]", values[x]).cpu().numpy() for x in self.streams]
        if len({len(column) for column in columns}) > 1:
            lengths = dict(zip(self.streams, map(len, columns), strict=True))
            raise InputError(f"values has the lengths {lengths}: pass one number for each query.")
        m = len(columns[0])
        shape = m, len(columns)
        draws = torch.rand(shape, dtype=torch.float64, generator=self.generator).numpy()
        before, start = len(self.reports), 0
        while start < m:
            stop = min(m, start + self.window - self.n % self.window)
            for i, stream in enumerate(self.streams.values()):
                stream.take(columns[i][start:stop], draws[start:stop, i])
            if self.n % self.window == 0:
                self.reports.append(self._report())
            start = stop
        return self.reports[before:]

    def plot(self, *, change: int | None = None) -> Figure:
        """Each quantity over time against the reference's band, and the evidence below.

        Parameters
        ----------
        change : int, optional
            The query after which the stream is known to be another one, to be marked.

        Raises
        ------
        InputError
            Before the first full window.

        Examples
        --------
        >>> monitor = Monitor({"uncertainty": torch.rand(500)}, window=50)
        >>> _ = monitor.update({"uncertainty": torch.rand(100)})
        >>> len(monitor.plot(change=60).axes)
        2
        """
        from laplace_metric.plots import monitor_plot

        return monitor_plot(self.reports, self.alarms, self.alarm_level, change=change)

    @property
    def alarm_level(self) -> float:
        """log10 of the evidence that raises an alarm: ``Q / false_alarms`` of Q quantities."""
        return float(np.log10(len(self.streams) / self.false_alarms))

    def save(self, path: str | Path) -> None:
        """Write the folder ``path``, safetensors and JSON; a loaded monitor goes on as this one."""
        streams = self.streams.values()
        tensors = {"generator": self.generator.get_state()}
        for i, stream in enumerate(streams):
            bets, seen = stream.martingale, np.array(stream.seen)
            arrays = {"reference": stream.reference, "values": seen, "window": stream.window}
            arrays |= {name: getattr(bets, name) for name in BETS}
            for name, values in arrays.items():
                tensors[f"{i}.{name}"] = torch.from_numpy(np.ascontiguousarray(values))
        alarms = [stream.martingale.alarm for stream in streams]
        content = {
            "window": self.window,
            "false_alarms": self.false_alarms,
            "names": list(self.streams),
            "n": self.n,
            "alarms": [alarm and asdict(alarm) for alarm in alarms],
            "reports": [asdict(report) for report in self.reports],
        }
        files.write(as_path("path", path), content, tensors, MONITOR)

    @classmethod
    def load(cls, path: str | Path) -> Monitor:
        """Read the folder of ``save``.

        Raises
        ------
        FileFormatError
            If the folder holds no monitor, or a damaged one.
        """
        content, tensors = files.read(as_path("path", path), MONITOR)
        try:
            reference = {name: tensors[f"{i}.reference"] for i, name in enumerate(content["names"])}
            rate = content["false_alarms"]
            monitor = cls(reference, window=content["window"], false_alarms=rate)
            monitor.generator.set_state(tensors["generator"])
            monitor.reports = [WindowReport.from_json(report) for report in content["reports"]]
            for i, stream in enumerate(monitor.streams.values()):
                bets, alarm = stream.martingale, content["alarms"][i]
                bets.n, bets.alarm = content["n"], alarm and Alarm(**alarm)
                for name in BETS:
                    setattr(bets, name, tensors[f"{i}.{name}"].numpy())
                stream.seen = array("d", tensors[f"{i}.values"].numpy().tobytes())
                stream.window = tensors[f"{i}.window"].numpy()
        except files.MALFORMED as error:
            raise FileFormatError(f"{path} is damaged: {error!r}.") from error
        return monitor

    def _report(self) -> WindowReport:
        tests = {name: compare(s.reference, s.window) for name, s in self.streams.items()}
        adjusted = holm([test.p_value for test in tests.values()])
        evidence = {}
        for (name, stream), p in zip(self.streams.items(), adjusted, strict=True):
            tests[name] = replace(tests[name], p_value=p)
            evidence[name] = stream.martingale.log_value / float(np.log(10))
            stream.window = np.empty(0)
        first = self.n - self.window + 1
        return WindowReport(first, self.n, self.false_alarms, tests, evidence, self.alarms)


class Stream:
    """One quantity: its reference, all values so far, its bets and its unfinished window.

    Parameters
    ----------
    name : str
    reference : array [n]
    threshold : float
        Of the martingale.
    """

    def __init__(self, name: str, reference: Array, threshold: float) -> None:
        self.reference = reference
        self.seen = array("d", np.sort(reference).tobytes())
        self.martingale = Martingale(name, threshold)
        self.window = np.empty(0)

    def take(self, values: Array, draws: Array) -> None:
        """The next values [m], no more than the window still lacks."""
        self.martingale.update(rank_p_values(self.seen, values, draws))
        self.window = np.concatenate([self.window, values])


def rank_p_values(seen: array[float], values: Array, draws: Array) -> Array:
    """p [m] of the next values [m], which join the sorted ``seen``; small = large value.

    ``draws`` [m] in [0, 1) are for ties. Counts are whole numbers, so the result does not depend on
    how a stream is cut.

    Examples
    --------
    >>> rank_p_values(array("d", [1.0, 2.0, 3.0]), np.array([2.5, 9.0]), np.array([0.5, 0.5]))
    array([0.375, 0.1  ])
    """
    found = np.empty(len(values))
    for i, value in enumerate(values.tolist()):
        left, right = bisect_left(seen, value), bisect_right(seen, value)
        found[i] = (len(seen) - right + draws[i] * (right - left + 1)) / (len(seen) + 1)
        seen.insert(right, value)
    return found


# A bet against exchangeability that can be watched for ever.

Array = npt.NDArray[np.float64]

SHARES, STAKES = (0.01, 0.05, 0.2, 0.5), (0.05, 0.1, 0.2, 0.4)
REGIONS: tuple[tuple[str, float, float], ...] = (
    *(("large", 0.0, share) for share in SHARES),
    *(("small", 1 - share, 1.0) for share in SHARES),
    ("middling", 0.25, 0.75),
)
"""Which values there are too many of, and the p-values that they have."""
KINDS = tuple(kind for kind, _, _ in REGIONS for _ in STAKES)
EDGES = np.unique([edge for _, low, high in REGIONS for edge in (low, high)])[1:-1]


def log_densities() -> Array:
    """``log f`` [pieces of [0, 1] between EDGES, bets]; each f integrates to 1."""
    middles = (np.concatenate([[0.0], EDGES]) + np.concatenate([EDGES, [1.0]])) / 2
    inside = [(middles > low) & (middles < high) for _, low, high in REGIONS]
    bets = [
        1 - stake + stake * within / (high - low)
        for within, (_, low, high) in zip(inside, REGIONS, strict=True)
        for stake in STAKES
    ]
    return np.log(np.stack(bets, axis=1))


LOG_DENSITIES = log_densities()


@dataclass(frozen=True)
class Alarm:
    """The evidence against "no drift" has reached what was asked for, for the first time.

    Parameters
    ----------
    name : str
        The quantity that drifted.
    at, since : int
        Queries are counted from 1: that of the alarm, and the one at which the bet that has
        gained most began (an estimate of when the change began).
    kind : "large" | "small" | "middling"
        Which values there are too many of.
    """

    name: str
    at: int
    since: int
    kind: str

    def __str__(self) -> str:
        return (
            f"ALARM at query {self.at:,}: too many {self.kind} values of {self.name} "
            f"since about query {self.since:,}"
        )


class Martingale:
    """The value of the bets on one stream of p-values.

    Parameters
    ----------
    name : str
        The quantity, for its alarm.
    threshold : float
        The logarithm of the value that raises the alarm.

    Attributes
    ----------
    alarm : Alarm or None
        The first crossing; it stays, whatever the value does later.

    Examples
    --------
    >>> martingale = Martingale("uncertainty", np.log(100.0))
    >>> martingale.update(np.full(40, 0.004)) > 0
    True
    >>> print(martingale.alarm)
    ALARM at query 3: too many large values of uncertainty since about query 1
    """

    def __init__(self, name: str, threshold: float) -> None:
        self.name, self.threshold = name, threshold
        self.n = 0
        self.bets = np.full(len(KINDS), -np.inf)  # log of the money in each bet, over all starts
        self.best = np.zeros(len(KINDS))  # log of the gain since the start that has gained most
        self.since = np.zeros(len(KINDS), dtype=np.int64)  # that start
        self.alarm: Alarm | None = None

    @property
    def log_value(self) -> float:
        """The logarithm of what the unit of money has become."""
        unspent = -log(log2(self.n + 2))
        return float(np.logaddexp(np.logaddexp.reduce(self.bets), unspent))

    def update(self, p_values: Array) -> float:
        """Bet on the next p-values [m]; returns ``log_value``."""
        for row in LOG_DENSITIES[np.searchsorted(EDGES, p_values, "right")]:
            self._step(row)
        return self.log_value

    def _step(self, row: Array) -> None:
        self.n += 1
        stake = log_share(self.n) - log(len(KINDS))
        self.since[self.best <= 0] = self.n
        self.best = np.maximum(self.best, 0) + row
        self.bets = np.logaddexp(self.bets, stake) + row
        if self.alarm is None and self.log_value >= self.threshold:
            bet = int(self.best.argmax())
            self.alarm = Alarm(self.name, self.n, int(self.since[bet]), KINDS[bet])


def log_share(t: int) -> float:
    """Logarithm of ``1 / log2(t + 1) - 1 / log2(t + 2)``, kept for a change at query t."""
    difference = log1p(1 / (t + 1)) / log(2)
    return log(difference / log2(t + 1) / log2(t + 2))


# One window against the reference: a two-sample test that sees the tails.

TAIL = 0.05


@dataclass(frozen=True)
class Quantiles:
    """5 %, 50 % and 95 % quantiles of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Quantiles:
        """Compute the quantiles of a sample [n]."""
        return cls(*(float(x) for x in np.quantile(values, (TAIL, 0.5, 1 - TAIL))))


@dataclass(frozen=True)
class ShiftTest:
    """Test of one quantity of a window against the reference.

    Parameters
    ----------
    window, reference : Quantiles
    above, below : float
        Share of the window beyond the reference's 95 % and 5 % quantile.
    larger : float
        Probability that a value of the window is larger than one of the reference, ties half.
    p_value : float
        After Holm's correction for the number of quantities.
    """

    window: Quantiles
    reference: Quantiles
    above: float
    below: float
    larger: float
    p_value: float

    @property
    def direction(self) -> str:
        """In one word."""
        if abs(self.larger - 0.5) < 0.01:
            return "differently spread"
        return "larger" if self.larger > 0.5 else "smaller"


def compare(reference: Array, window: Array) -> ShiftTest:
    """One quantity, before any correction for several.

    Examples
    --------
    >>> reference = np.arange(1000.0)
    >>> compare(reference, reference[::10]).p_value
    1.0
    >>> compare(reference, reference[450:550]).direction
    'differently spread'
    """
    spread = Quantiles.of(reference)
    ordered = np.sort(reference)
    places = sum(np.searchsorted(ordered, window, side) for side in ("left", "right"))
    return ShiftTest(
        Quantiles.of(window),
        spread,
        float((window > spread.high).mean()),
        float((window < spread.low).mean()),
        float(np.mean(places) / 2 / len(reference)),
        p_value(reference, window),
    )


def p_value(reference: Array, window: Array) -> float:
    """Return the p-value of "both are draws from one distribution"."""
    bulk = stats.ks_2samp(reference, window, method="asymp").pvalue
    tails = (tail_p_value(sign * reference, sign * window) for sign in (1, -1))
    return float(min(1.0, 3 * min(bulk, *tails)))


def tail_p_value(reference: Array, window: Array) -> float:
    """Two-sided, exact: the window's share of the largest 5 % of both samples (more with ties).

    The bound depends on the two samples together and not on which is which, so without drift the
    count is hypergeometric.
    """
    both = np.concatenate([reference, window])
    bound = np.quantile(both, 1 - TAIL, method="higher")
    beyond, in_window = int((both >= bound).sum()), int((window >= bound).sum())
    law = stats.hypergeom(len(both), beyond, len(window))
    return float(min(1.0, 2 * min(law.cdf(in_window), law.sf(in_window - 1))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.asarray(p_values)[order] * (len(order) - np.arange(len(order)))
    adjusted = np.minimum(1.0, np.maximum.accumulate(stepped))[np.argsort(order)]
    return [float(x) for x in adjusted]


@dataclass(frozen=True)
class WindowReport:
    """One window of the stream against the reference.

    Parameters
    ----------
    first, last : int
        Its queries, counted from 1.
    level : float
        Of the window's test.
    shift_tests : dict of name to ShiftTest
    evidence : dict of name to float
        log10 of the martingale after the window: 2 are odds of 100 to 1 against "no drift since
        the beginning".
    alarms : tuple of Alarm
        All so far, the earliest first; printed are those of this window, ``new_alarms``.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.monitor import Monitor
    >>> monitor = Monitor({"uncertainty": torch.arange(1000.0)}, window=100)
    >>> print(*monitor.update({"uncertainty": torch.arange(900.0, 1000.0)}))
    queries 1 to 100: DRIFT
      uncertainty: larger, median 949.5 (reference 499.5), 50.0% above the reference's 95% \
quantile, p = 6e-91
      ALARM at query 10: too many large values of uncertainty since about query 1
    """

    first: int
    last: int
    level: float
    shift_tests: dict[str, ShiftTest]
    evidence: dict[str, float]
    alarms: tuple[Alarm, ...]

    @property
    def drifted(self) -> tuple[str, ...]:
        """The quantities in which this window differs from the reference."""
        tests = self.shift_tests.items()
        return tuple(name for name, test in tests if test.p_value <= self.level)

    @property
    def new_alarms(self) -> tuple[Alarm, ...]:
        """Alarms that one of this window's queries raised."""
        return tuple(alarm for alarm in self.alarms if alarm.at >= self.first)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> WindowReport:
        """Build from the result of ``dataclasses.asdict``."""
        alarms = tuple(Alarm(**alarm) for alarm in content["alarms"])
        tests = {name: _shift_test(test) for name, test in content["shift_tests"].items()}
        return cls(**{**content, "shift_tests": tests, "alarms": alarms})

    def __str__(self) -> str:
        title = "DRIFT" if self.drifted else "no difference seen"
        lines = [f"queries {self.first:,} to {self.last:,}: {title}"]
        lines += [f"  {name}: {self._line(name)}" for name in self.shift_tests]
        return "\n".join([*lines, *(f"  {alarm}" for alarm in self.new_alarms)])

    def _line(self, name: str) -> str:
        test = self.shift_tests[name]
        upper = test.above - test.below >= 0
        share, side = (test.above, "above") if upper else (test.below, "below")
        quantile = "95%" if upper else "5%"
        return (
            f"{test.direction if name in self.drifted else 'as before'}, median "
            f"{test.window.median:.4g} (reference {test.reference.median:.4g}), {share:.1%} {side} "
            f"the reference's {quantile} quantile, p = {test.p_value:.1g}"
        )


def _shift_test(content: dict[str, Any]) -> ShiftTest:
    quantiles = {name: Quantiles(**content[name]) for name in ("window", "reference")}
    return ShiftTest(**{**content, **quantiles})
