"""Blocks of points, what may be appended, and the checks of what is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.validation import check_dense
from laplace_metric.errors import InputError, LabelError, NonFiniteError

RowSpec = tuple[Tensor, Tensor]
"""Features [0, D] and labels [0]: the width and the types of all rows."""

CHECKS_AT_ONCE = 1024
"""Batches on an accelerator whose check may be outstanding."""


@dataclass
class Derived:
    """Tensors computed from the blocks of a source, of one owner at a time, for their next reading.

    Parameters
    ----------
    n_bytes : int
        How many may be kept.
    kept : Kept
        Replaced by that of another owner, never changed to it: of several threads with owners of
        their own each gets what is its own.
    """

    n_bytes: int
    kept: Kept


@dataclass
class Kept:
    """Objects of one owner: tensors by start and rows of their block, and the bytes left."""

    owner: tuple[object, ...]
    bytes_left: int
    tensors: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Rows ``start`` to ``stop`` of a source: features [n, D] and labels [n].

    Examples
    --------
    >>> block = Block(64, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64))
    >>> len(block), block.stop
    (3, 67)
    """

    start: int
    features: Float[Tensor, "n D"]
    labels: Int[Tensor, " n"]
    derived: Derived | None = None
    """Where what is computed from the block may be kept, for its next reading."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def stop(self) -> int:
        """The row after the last one: where the next block starts."""
        return self.start + len(self)


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Features must be floats [N, D] with one label a row.

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
        raise LabelError(f"{where} has {len(features)} rows but {len(labels)} labels.")


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
    """Raise ``NonFiniteError`` with the number of rows, if some hold NaN or infinity."""
    if features.numel() and not _finite(features):
        bad = int((~torch.isfinite(features)).any(1).sum())
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {bad} of {len(features)} rows: check the inputs "
            "and the model's weights."
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
