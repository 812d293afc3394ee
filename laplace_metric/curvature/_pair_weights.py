"""Pair weights y_ij: what a pass needs to know of the pairs of a block of points."""

from __future__ import annotations

from laplace_metric.curvature._margin_pairs import MarginPairWeights
from laplace_metric.curvature.by_class import ClassPairWeights

PairWeights = ClassPairWeights | MarginPairWeights
"""Weights y_ij of one kind of pairs, for the points of a block.

``prepare`` computes what is computed once. ``sums`` returns w_i [n] and m_i [n, K], or [n, 0] where
the geometry does not need it. ``pairs`` yields (columns, Y [n, m]) of pairs that must be computed
one by one. ``tensors`` returns what the weights depend on, apart from the class sums.
"""
