"""Drift: whether a stream of queries still looks like the data an embedder was measured on."""

from laplace_metric.monitor._martingale import Alarm
from laplace_metric.monitor._monitor import Monitor
from laplace_metric.monitor._windows import WindowReport

__all__ = [
    "Alarm",
    "Monitor",
    "WindowReport",
]
