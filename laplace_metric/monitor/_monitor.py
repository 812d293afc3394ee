"""All that is kept of one quantity.

``Monitor``: a stream of queries against a reference, window by window and for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laplace_metric._utils.validation import ArrayLike, check_count, check_share
from laplace_metric.monitor._martingale import (
    LEAST,
    Alarm,
    Array,
    Martingale,
    RunningRanks,
    checked_reference,
    checked_values,
)
from laplace_metric.monitor._windows import WindowReport, compare, holm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laplace_metric.embedder import LaplaceEmbedder


class StreamState:
    """Reference, ranks, bets and the unfinished window of one quantity.

    Parameters
    ----------
    name : str
    reference : [n]
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


class Monitor:
    """Tells when a stream's uncertainty, or any other number of each query, leaves its reference.

    Two answers with one rate ``a = false_alarms``, each true if the reference and the stream are
    exchangeable (drawn from one distribution, independently) as long as nothing drifts:

    - each full window is compared with the reference by a two-sample test (``windows``) of level
      a: of all windows without drift, a share of at most about a is said to have moved. Windows
      share the reference, so with an unlucky one that share is larger for all of them; this
      matters less the larger the reference is beside the window.
    - the evidence against "no drift" since the first query (``martingale``) raises an ``Alarm``,
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
    generator : torch.Generator, optional
        Of the CPU, for the draws that break ties; None: a fresh one with a fixed seed. It moves on
        with every query.

    Attributes
    ----------
    readings : list of Reading
        Of every full window so far.

    Raises
    ------
    InputError, NonFiniteError
        For an empty or too small reference, NaN, and numbers out of range.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> monitor = Monitor({"uncertainty": torch.rand(2000, generator=generator)}, window=200)
    >>> [reading] = monitor.update({"uncertainty": torch.rand(250, generator=generator)})
    >>> reading.moved, monitor.alarms
    ((), ())
    >>> more = monitor.update({"uncertainty": 1.5 * torch.rand(400, generator=generator)})
    >>> [reading.moved for reading in more], monitor.alarms[0].at
    ([('uncertainty',), ('uncertainty',)], 260)
    """

    def __init__(
        self,
        reference: Mapping[str, ArrayLike],
        *,
        window: int = 500,
        false_alarms: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        self.window = check_count("window", window, LEAST)
        self.false_alarms = check_share("false_alarms", false_alarms)
        self.generator = torch.Generator() if generator is None else generator
        self.readings: list[WindowReport] = []
        values = checked_reference(reference)
        threshold = float(np.log(len(values) / self.false_alarms))
        self.tracks = {name: StreamState(name, x, threshold) for name, x in values.items()}

    @classmethod
    def of(
        cls,
        embedder: LaplaceEmbedder,
        loader: Iterable[Any],
        *,
        progress: bool = True,
        **options: Any,
    ) -> Monitor:
        """A monitor of the quantity "uncertainty", with that of held-out data as reference.

        Parameters
        ----------
        embedder : LaplaceEmbedder
            Fitted; anything that has ``uncertainties(loader)``.
        loader : iterable of batches
            Data that neither the model nor the posterior was fitted on.
        **options
            Of ``Monitor``.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(200, 8), torch.arange(200) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
        >>> monitor = Monitor.of(embedder, [x[100:]], window=50, progress=False)
        >>> len(monitor.update({"uncertainty": embedder(x[:50]).uncertainty}))
        1
        """
        found = embedder.uncertainties(loader, progress=progress)
        return cls({"uncertainty": found}, **options)

    @property
    def n(self) -> int:
        """Queries so far."""
        return next(iter(self.tracks.values())).martingale.n

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """At most one of each quantity, the earliest first."""
        found = [track.martingale.alarm for track in self.tracks.values()]
        return tuple(sorted((a for a in found if a is not None), key=lambda alarm: alarm.at))

    def update(self, values: Mapping[str, ArrayLike]) -> list[WindowReport]:
        """Take the next queries in; their number is free and changes no result.

        Parameters
        ----------
        values : mapping of name to [m]
            Every name of the reference, in the order of the queries.

        Returns
        -------
        list of Reading
            One for each window that these queries complete. ``alarms`` is up to date after every
            call, full window or not.

        Raises
        ------
        InputError, NonFiniteError
            Then nothing of ``values`` was taken in.
        """
        columns = checked_values(values, tuple(self.tracks))
        m = len(next(iter(columns.values())))
        shape = m, len(columns)
        draws = torch.rand(shape, dtype=torch.float64, generator=self.generator).numpy()
        before, start = len(self.readings), 0
        while start < m:
            stop = min(m, start + self.window - self.n % self.window)
            for place, (name, track) in enumerate(self.tracks.items()):
                track.take(columns[name][start:stop], draws[start:stop, place])
            if self.n % self.window == 0:
                self.readings.append(self._read())
            start = stop
        return self.readings[before:]

    def plot(self) -> Figure:
        """Each quantity over time against the reference's band, and the evidence below.

        Raises
        ------
        InputError
            Before the first full window.
        """
        from laplace_metric.plots import monitor_plot

        return monitor_plot(self)

    def save(self, path: str | Path) -> None:
        """Write the folder ``path``, safetensors and JSON; a loaded monitor goes on as this one."""
        from laplace_metric.monitor._files import save

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Monitor:
        """What ``save`` wrote.

        Raises
        ------
        FileFormatError
        """
        from laplace_metric.monitor._files import load

        return load(Path(path))

    def _read(self) -> WindowReport:
        found = [compare(track.reference, track.window) for track in self.tracks.values()]
        adjusted = holm([move.p_value for move in found])
        pairs = zip(self.tracks, found, adjusted, strict=True)
        moves = {name: replace(move, p_value=p) for name, move, p in pairs}
        evidence = {
            name: track.martingale.log_value / float(np.log(10))
            for name, track in self.tracks.items()
        }
        for track in self.tracks.values():
            track.window = np.empty(0)
        first = self.n - self.window + 1
        return WindowReport(first, self.n, self.false_alarms, moves, evidence, self.alarms)
