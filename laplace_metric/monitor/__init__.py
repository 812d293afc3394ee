"""Drift of a stream of queries: every window tested against a reference, and one lasting alarm.

``_monitor`` is the public class. ``_stream`` ranks the values of one quantity, ``_martingale`` bets
against "no drift" and raises the alarm, ``_window_tests`` compare a window with the reference, and
``_report`` says what a window has shown.
"""

from laplace_metric.calibration._martingale import Alarm
from laplace_metric.monitor._monitor import Monitor
from laplace_metric.monitor._report import WindowReport

__all__ = ["Alarm", "Monitor", "WindowReport"]
