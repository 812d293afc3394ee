"""Check features that are stored: their shape, their type, and that they are finite."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laplace_metric._utils.validation import check_dense
from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.inputs._rows_in_errors import bad_rows, rows_of_this_batch
from laplace_metric.models._blocks import RowSpec

CHECKS_AT_ONCE = 1024
"""Batches on an accelerator whose check may be outstanding."""


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Refuse features that are not floats [N, D] with one label a row.

    Raises
    ------
    InputError
        If features are something else.
    LabelError
        If the numbers of rows differ.
    """
    check_dense(where, features)
    check_dense(f"labels of {where}", labels)
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"{where} is {features.dtype} {tuple(features.shape)}: pass floats [N, D]."
        )
    if len(features) != len(labels):
        one = " One row [D] is one item: of a list of items pass torch.stack(items)."
        raise LabelError(
            f"{where} has {len(features)} rows but {len(labels)} labels."
            f"{one if len(features) == 1 else ''}"
        )


def check_spec(features: Tensor, labels: Tensor, spec: RowSpec | None, *, where: str) -> None:
    """Raise ``InputError`` unless the rows have the width and the types of earlier ones."""
    names, rows = ("features", "labels"), (features, labels)
    for name, now, before in zip(names, rows, spec or rows, strict=True):
        if (now.dtype, now.shape[1:]) != (before.dtype, before.shape[1:]):
            raise InputError(
                f"{where} has {name} {now.dtype} {tuple(now.shape)}, earlier ones are "
                f"{before.dtype} of shape {('N', *before.shape[1:])}: pass rows of one kind."
            )


def check_finite(features: Float[Tensor, "n D"], *, where: str) -> None:
    """Raise ``NonFiniteError`` that names the rows, if some hold NaN or infinity."""
    if features.numel() and not _finite(features):
        rows = bad_rows((~torch.isfinite(features)).any(1))
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {rows}: check these inputs and the model's weights."
        )


def _finite(features: Float[Tensor, "n D"]) -> Bool[Tensor, ""]:
    low, high = features.aminmax()  # one pass, NaN propagates, nothing [N, D] is allocated
    return torch.isfinite(low) & torch.isfinite(high)


class FiniteChecks:
    """``check_finite`` at once on the CPU; on an accelerator later, so that nothing waits for it.

    Examples
    --------
    >>> checks = FiniteChecks()
    >>> checks.add(torch.ones(2, 3), where="batch 0")
    >>> checks.settle()
    """

    def __init__(self) -> None:
        self.pending: list[tuple[str, Tensor]] = []

    def add(self, features: Tensor, *, where: str) -> None:
        """Check features [n, D], or note a flag on their device."""
        if not _later(features.device):
            check_finite(features, where=where)
        elif features.numel():
            where = f"{where} ({rows_of_this_batch(len(features))})"
            self.pending.append((where, _finite(features)))
            if len(self.pending) >= CHECKS_AT_ONCE:
                self.settle()

    def settle(self) -> None:
        """Raise ``NonFiniteError`` for the first bad batch, each time it is called after one."""
        if not self.pending:
            return
        flags = torch.stack([flag for _, flag in self.pending]).tolist()  # the one synchronisation
        bad = [where for (where, _), finite in zip(self.pending, flags, strict=True) if not finite]
        if bad:
            raise NonFiniteError(
                f"{bad[0]} holds NaN or infinity: check the inputs and the model's weights."
            )
        self.pending.clear()


def _later(device: torch.device) -> bool:
    return device.type == "cuda"
