"""Curvature terms: a term defines the summands over points and pairs, a pass adds them up.

Every term is linear in the pair targets y and gives what is added up, in float64, of

    2 sum_i J_i^T T_i J_i / r_i^2  -  2 sum_ij y_ij J^_i^T J^_j

The second sum over all pairs of a class is a product of class sums, ``G_c = sum_{i in c} J^_i``,
so it is not a sum over points: G_c is, and is collected tile by tile before its products are taken.

``JacobianTerm`` works for any head, ``LayeredTerm`` for linear layers, without any [P, P] array.
"""

from __future__ import annotations

from laplace_metric.curvature._jacobian_terms import JacobianTerm
from laplace_metric.curvature._layered_term import LayeredTerm

CurvatureTerm = JacobianTerm | LayeredTerm
"""Summands of a sum over points and pairs; the sum itself is in the totals of a pass.

``JacobianTerm`` documents ``inputs``, ``zeros``, ``points``, ``pairs``, ``tiles``, ``class_sum``
and ``classes``.
"""
