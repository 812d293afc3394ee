"""Structures of the curvature: how H is stored, inverted and sampled."""

from laplace_metric.curvature.diagonal import DiagonalCurvature

STRUCTURES = ("diag",)

__all__ = ["STRUCTURES", "DiagonalCurvature"]
