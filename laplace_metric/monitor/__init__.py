"""Drift: does a stream of queries still look like the data that the embedder was measured on?

One room each: ``windows`` compares one window with the reference, ``ranks`` turns a stream into
conformal p-values, ``martingale`` bets against them, ``track`` is all that is kept of one quantity,
``reading`` says it in words, ``picture`` draws it, ``state`` is the monitor on disk, ``checks``
what it is given and ``monitor`` the front door.
"""

from laplace_metric.monitor._martingale import Alarm
from laplace_metric.monitor._monitor import Monitor
from laplace_metric.monitor._windows import Quantiles, ShiftTest, WindowReport, p_value

__all__ = ["Alarm", "Monitor", "Quantiles", "ShiftTest", "WindowReport", "p_value"]
