"""Which structure ``"auto"`` stands for, head by head.

In the benchmarks the Kronecker structure ranks strange inputs better than the diagonal, and errors
better on all tasks but one (``benchmarks/README.md``); its price are two decompositions, cubic in
the width of the features and of the embedding.
"""

from __future__ import annotations

from laplace_metric.jacobians import HeadJacobian

AUTO = "auto"
WIDEST = 2_048
"""Inputs or outputs of a linear layer, the largest whose decomposition takes seconds."""


def resolved(structure: str, head: HeadJacobian) -> str:
    """``"kron"`` for linear layers of up to 2,048 inputs and outputs, else ``"diag"``.

    A structure other than ``"auto"`` stays as it is.

    Examples
    --------
    >>> from torch import nn
    >>> from laplace_metric.jacobians import jacobian_of
    >>> [resolved("auto", jacobian_of(nn.Linear(d, 8), 8)) for d in (2048, 2049)]
    ['kron', 'diag']
    """
    if structure != AUTO:
        return structure
    narrow = all(max(x.n_outputs, x.n_features) <= WIDEST for x in head.layouts)
    return "kron" if head.layered and narrow else "diag"
