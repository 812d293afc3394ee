"""Drift: whether a stream of queries still looks like the data an embedder was measured on."""

from laplace_metric.monitor._martingale import Alarm
from laplace_metric.monitor._monitor import Monitor
from laplace_metric.monitor._windows import Quantiles, ShiftTest, WindowReport, p_value

__all__ = ["Alarm", "Monitor", "Quantiles", "ShiftTest", "WindowReport", "p_value"]
