"""Which Jacobian backend a head gets."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn

from laplace_metric.errors import HeadError, UnknownNameError
from laplace_metric.heads._capture import PointwiseHead
from laplace_metric.heads._chain import ChainJacobian
from laplace_metric.heads._functional import FunctionalJacobian
from laplace_metric.heads._jacobian import HeadJacobian, LinearJacobian
from laplace_metric.heads._nnj import NnjJacobian

BACKENDS = ("auto", "analytic", "torch.func", "backpack", "nnj")


def check_backend(name: str) -> None:
    """The name must be one of ``BACKENDS``.

    Raises
    ------
    UnknownNameError
        If it is not.
    """
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, BACKENDS)


def jacobian_of(module: nn.Module, n_outputs: int, backend: str = "auto") -> HeadJacobian:
    """The Jacobian of a head with Z outputs.

    Parameters
    ----------
    backend : "auto" | "analytic" | "torch.func" | "backpack" | "nnj"
        "auto": analytic where it exists (linear layers with elementwise activations between
        them), nnj for nnj's own modules, else torch.func.

    Raises
    ------
    HeadError
        If the backend cannot differentiate this head; the message names those that can.

    Examples
    --------
    >>> type(jacobian_of(nn.Linear(3, 2), 2)).__name__
    'LinearJacobian'
    """
    check_backend(backend)
    if backend == "auto":
        backend = _best(module)
    if backend == "analytic":
        return _analytic(module)
    if backend == "torch.func":
        return FunctionalJacobian(module, n_outputs)
    if backend == "nnj":
        return NnjJacobian.of(module, n_outputs)
    from laplace_metric.heads._backpack import BackpackJacobian

    return BackpackJacobian.of(module, n_outputs)


def _best(module: nn.Module) -> str:
    if is_linear(module) or ChainJacobian.fits(module):
        return "analytic"
    return "nnj" if NnjJacobian.fits(module) else "torch.func"


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear | PointwiseHead]:
    """``nn.Linear``, or nnj's, which computes the same; other subclasses may compute anything.

    So is a 1x1 convolution on mean features.
    """
    if isinstance(module, PointwiseHead):
        return True
    known = type(module).__module__.split(".")[0] in ("torch", "nnj")
    return isinstance(module, nn.Linear) and known


def _analytic(module: nn.Module) -> HeadJacobian:
    if is_linear(module):
        return LinearJacobian.of(module)
    if isinstance(module, nn.Sequential) and ChainJacobian.fits(module):
        return ChainJacobian.of(module)
    raise HeadError(
        f"backend='analytic' knows nn.Linear, and nn.Sequential of linear layers with elementwise "
        f"activations between them; this head is a {type(module).__name__}. Use "
        "backend='torch.func' (any head) or 'backpack'."
    )
