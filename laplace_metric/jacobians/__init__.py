"""Jacobians of the head, ``J_i = d z_i / d theta``: one file a backend, one protocol."""

from laplace_metric.jacobians.linear import LinearJacobian, at_least_float32
from laplace_metric.jacobians.protocol import HeadJacobian

__all__ = ["HeadJacobian", "LinearJacobian", "at_least_float32"]
