"""Jacobians of the head, ``J_i = d z_i / d theta``: one file a backend, one protocol."""

from laplace_metric.jacobians.chain import ChainJacobian
from laplace_metric.jacobians.choose import BACKENDS, jacobian_of
from laplace_metric.jacobians.functional import FunctionalJacobian
from laplace_metric.jacobians.linear import LinearJacobian
from laplace_metric.jacobians.precision import at_least_float32
from laplace_metric.jacobians.protocol import HeadJacobian

__all__ = [
    "BACKENDS",
    "ChainJacobian",
    "FunctionalJacobian",
    "HeadJacobian",
    "LinearJacobian",
    "at_least_float32",
    "jacobian_of",
]
