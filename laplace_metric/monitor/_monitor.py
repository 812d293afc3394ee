"""``Monitor``: a stream of queries against a reference, window by window and over all time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laplace_metric import io as files
from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import ArrayLike, as_path, as_scores, check_count, check_share
from laplace_metric.calibration._martingale import KINDS, Alarm
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.monitor._report import WindowReport
from laplace_metric.monitor._stream import SavedStream, Stream
from laplace_metric.monitor._window_tests import LEAST, compare, holm

if TYPE_CHECKING:
    from laplace_metric.plots import Figure

MONITOR = files.Kind("monitor", "a saved monitor", 2)


class Monitor(Shown):
    """Detects when a stream's uncertainty, or any other number of each query, leaves its reference.

    Two answers with one rate ``a = false_alarms``, each true if the reference and the stream are
    exchangeable (drawn from one distribution, independently) as long as nothing drifts:

    - each full window is compared with the reference by a two-sample test of level
      a: of all windows without drift, a share of at most about a is said to have drifted. Windows
      share the reference, so with an unlucky one that share is larger for all of them; this
      matters less the larger the reference is next to the window.
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
        Number of queries of a window, at least 30. Default: 500; a shorter one reports sooner and
        notices less.
    false_alarms : float in (0, 1)
        Rate a of false alarms, of both answers. Default: 0.01; a smaller one takes longer to notice
        a drift.
    seed : torch.Generator or int, optional
        CPU generator or seed of the draws that break ties. None, the default: a new one with a
        fixed seed. Its state advances with every query.

    Attributes
    ----------
    reports : list of WindowReport
        Reports of all full windows so far.

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
        seed: Seed = None,
    ) -> None:
        self.window = check_count("window", window, LEAST)
        self.false_alarms = check_share("false_alarms", false_alarms)
        source = as_generator(seed)
        self.generator = torch.Generator() if source is None else source
        self.reports: list[WindowReport] = []
        if not isinstance(reference, Mapping) or not reference:
            of_type = isinstance(reference, Mapping)
            given = "empty" if of_type else f"a {type(reference).__name__}"
            raise InputError(
                f"reference is {given}: pass {{name: values [n]}}, such as "
                "index.search(queries).signals."
            )
        threshold = float(np.log(len(reference) / self.false_alarms))
        self.streams: dict[str, Stream] = {}
        for name, values in reference.items():
            if not isinstance(name, str):
                raise InputError(f"reference has the key {name!r}: name each quantity by a string.")
            column = as_scores(f"reference[{name!r}]", values).cpu().numpy()
            if len(column) < LEAST:
                raise InputError(
                    f"reference[{name!r}] has {len(column)} values: pass {LEAST} or more."
                )
            self.streams[name] = Stream(name, column, threshold)

    def _sentence(self) -> str:
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        return f"{self.n:,} queries so far, {alarms}."

    def _shown_rows(self) -> Rows:
        shown = {"watches": ", ".join(self.streams), "window": self.window}
        return in_rows({**shown, "false alarms": self.false_alarms}.items())

    @property
    def n(self) -> int:
        """Number of queries so far."""
        return next(iter(self.streams.values())).martingale.n

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms so far, at most one of each quantity, the earliest first."""
        alarms = [stream.martingale.alarm for stream in self.streams.values()]
        return tuple(sorted((a for a in alarms if a is not None), key=lambda alarm: alarm.at))

    def update(self, values: Mapping[str, ArrayLike]) -> list[WindowReport]:
        """Take the next queries in; their number is free and changes no result.

        Parameters
        ----------
        values : mapping of name to [m]
            Values of the next queries, in their order, under every name of the reference.

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
        """Plot each quantity over time against the reference's band, and the evidence below.

        Parameters
        ----------
        change : int, optional
            Number of the query after which the stream is known to be another one, to be marked.
            None, the default: no mark.

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
        """Write one file, such as "monitor.safetensors"; a loaded monitor goes on as this one."""
        streams = self.streams.values()
        arrays: dict[str, Any] = {"generator": self.generator.get_state()}
        for i, stream in enumerate(streams):
            own = files.record(stream.saved())[1]
            arrays |= {f"{i}.{name}": values for name, values in own.items()}
        alarms = [stream.martingale.alarm for stream in streams]
        content = {
            "window": self.window,
            "false_alarms": self.false_alarms,
            "names": list(self.streams),
            "n": self.n,
            "alarms": [alarm and files.record(alarm)[0] for alarm in alarms],
            "reports": [files.record(report)[0] for report in self.reports],
        }
        files.write(as_path("path", path), files.Part(MONITOR, content, arrays))

    @classmethod
    def load(cls, path: str | Path) -> Monitor:
        """Read the file of ``save``.

        Raises
        ------
        FileFormatError
            If the file holds no monitor, or a damaged one.
        """
        saved = files.SavedFile(as_path("path", path))
        with saved.checked():
            part = saved.part(MONITOR)
            content, arrays = files.Fields(part.content, "monitor"), part.arrays
            names, n = content.items("names"), content.whole("n")
            window = content.whole("window", least=LEAST)
            alarms, reports = content.entries("alarms"), content.entries("reports")
            held = {"names": {*names}, "alarms": alarms.content, "reports": reports.content}
            counts = {name: len(values) for name, values in held.items()}
            wanted = {"names": len(names), "alarms": len(names), "reports": n // window}
            if counts != wanted:
                raise FileFormatError(f"monitor of {n} queries has {counts}, not {wanted}")
            streams = {
                name: files.restored(
                    SavedStream,
                    files.Fields({}, f"monitor.{name}"),
                    files.below(f"{i}.", arrays),
                    w=n % window,
                    B=len(KINDS),
                )
                for i, name in enumerate(names)
            }
            reference = {name: stream.reference for name, stream in streams.items()}
            rate = content.share("false_alarms")
            monitor = cls(reference, window=window, false_alarms=rate)
            state = monitor.generator.get_state()
            monitor.generator.set_state(
                files.checked_array(
                    "monitor/generator", arrays.get("generator"), state.shape, dtype="uint8"
                )
            )
            for i, (name, stream) in enumerate(streams.items()):
                alarm = None
                if str(i) in alarms:
                    alarm = files.restored(Alarm, alarms.inner(str(i)), {})
                monitor.streams[name].restore(stream, n, alarm, f"monitor.{name}")
            monitor.reports = [
                files.restored(WindowReport, reports.inner(i), {}) for i in reports.content
            ]
            for number, report in enumerate(monitor.reports, 1):
                span = (number - 1) * window + 1, number * window
                alarmed = tuple(alarm for alarm in monitor.alarms if alarm.at <= span[1])
                found = report.first, report.last, report.level, report.alarms
                known = [*report.shift_tests] == [*report.evidence] == names
                if not known or found != (*span, rate, alarmed):
                    raise FileFormatError(f"monitor.reports[{number - 1}] is of another window")
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
