"""Choose the backend that differentiates a head."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn

from laplace_metric.errors import HeadError, UnknownNameError
from laplace_metric.heads._backpack import BackpackJacobian
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._functional import FunctionalJacobian
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._nnj import NnjJacobian
from laplace_metric.heads._pointwise import PointwiseHead

BACKENDS = ("auto", "analytic", "torch.func", "backpack", "nnj")


def jacobian_of(module: nn.Module, n_outputs: int, backend: str = "auto") -> HeadJacobian:
    """Return the Jacobian of a head with Z outputs.

    Parameters
    ----------
    module : nn.Module
        The head, [B, D] -> [B, Z].
    n_outputs : int
        Z, the width of its output.
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        "auto": analytic where it exists (linear layers with elementwise activations between
        them), nnj for nnj's own modules, else torch.func.

    Raises
    ------
    UnknownNameError
        If ``backend`` is another name.
    HeadError
        If the backend cannot differentiate this head; the message names those that can.

    Examples
    --------
    >>> type(jacobian_of(nn.Linear(3, 2), 2)).__name__
    'LinearJacobian'
    """
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend in ("auto", "analytic"):
        if is_linear(module):
            return LinearJacobian.of(module)
        if ChainJacobian.fits(module):
            return ChainJacobian.of(module)
        if backend == "analytic":
            raise HeadError(
                "backend='analytic' knows nn.Linear, and nn.Sequential of linear layers with "
                f"elementwise activations between them; this head is a {type(module).__name__}. "
                "Use backend='torch.func' (any head) or 'backpack'."
            )
        backend = "nnj" if NnjJacobian.fits(module) else "torch.func"
    if backend == "backpack":
        return BackpackJacobian.of(module, n_outputs)
    kind = NnjJacobian if backend == "nnj" else FunctionalJacobian
    return kind.of(module, n_outputs)


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear | PointwiseHead]:
    """Return whether a head is ``nn.Linear``, nnj's linear layer, or a 1x1 convolution.

    nnj's layer computes the same; other subclasses of ``nn.Linear`` may compute anything. A 1x1
    convolution is linear in its mean features.
    """
    if isinstance(module, PointwiseHead):
        return True
    known = type(module).__module__.split(".")[0] in ("torch", "nnj")
    return isinstance(module, nn.Linear) and known
