"""Jacobians of the head, ``J_i = d z_i / d theta``: one file a backend, one protocol."""

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.models.jacobians._chain import ChainJacobian
from laplace_metric.models.jacobians._choose import BACKENDS, check_backend, jacobian_of
from laplace_metric.models.jacobians._factors import Factor, OrthogonalFactor
from laplace_metric.models.jacobians._functional import FunctionalJacobian
from laplace_metric.models.jacobians._head_jacobian import HeadJacobian, LinearJacobian
from laplace_metric.models.jacobians._layers import Affine, Layer, Layout, pad

__all__ = [
    "BACKENDS",
    "Affine",
    "ChainJacobian",
    "Factor",
    "FunctionalJacobian",
    "HeadJacobian",
    "Layer",
    "Layout",
    "LinearJacobian",
    "OrthogonalFactor",
    "at_least_float32",
    "check_backend",
    "jacobian_of",
    "pad",
]
