"""What may be appended, and how many rows are handled at once."""

from __future__ import annotations

import torch
from torch import Tensor

from laplace_metric.errors import InputError, LabelError, NonFiniteError
from laplace_metric.features.protocol import Like

BLOCK_BYTES = 4 * 2**20
"""Bytes of one block: small enough for a CPU's cache, large enough for a full-speed product."""

AT_ONCE = 1024
"""Batches on an accelerator whose check may be outstanding."""


def block_rows(n_columns: int, itemsize: int, budget: int = BLOCK_BYTES) -> int:
    """Rows of a [rows, n_columns] block within ``budget`` bytes, at least 64."""
    return max(64, budget // max(1, n_columns * itemsize))


def check_shapes(features: Tensor, labels: Tensor, *, where: str) -> None:
    """Raise unless features are floats [N, D] with one label a row."""
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"{where} is {features.dtype} {tuple(features.shape)}: pass floats [N, D]."
        )
    if len(features) != len(labels):
        raise LabelError(f"{where} has {len(features)} rows but {len(labels)} labels.")


def check_like(features: Tensor, labels: Tensor, like: Like | None, *, where: str) -> None:
    """Raise unless features [n, D] and labels [n] have the width and the types of earlier rows."""
    if like is None:
        return
    if features.shape[1] != like[0].shape[1]:
        raise InputError(
            f"{where} has {features.shape[1]} features, earlier ones {like[0].shape[1]}"
        )
    for name, now, before in zip(("features", "labels"), (features, labels), like, strict=True):
        if (now.dtype, now.shape[1:]) != (before.dtype, before.shape[1:]):
            raise InputError(
                f"{where} has {name} {now.dtype} {tuple(now.shape)}, earlier ones are "
                f"{before.dtype} of shape {('N', *before.shape[1:])}: pass one type."
            )


def check_finite(features: Tensor, *, where: str) -> None:
    """Raise ``NonFiniteError`` that names ``where`` and counts the rows with NaN or infinity."""
    if features.numel() == 0:
        return
    if not _finite(features):
        bad = int((~torch.isfinite(features)).any(1).sum())
        raise NonFiniteError(
            f"{where} holds NaN or infinity in {bad} of {len(features)} rows: check the inputs "
            "and the model's weights."
        )


def _finite(features: Tensor) -> Tensor:
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
        self._open: list[tuple[str, Tensor]] = []

    def add(self, features: Tensor, *, where: str) -> None:
        """Check features [n, D], or note a flag on their device."""
        if not _later(features.device):
            check_finite(features, where=where)
        elif features.numel():
            self._open.append((where, _finite(features)))
            if len(self._open) >= AT_ONCE:
                self.settle()

    def settle(self) -> None:
        """Raise ``NonFiniteError`` for the first bad batch, each time it is called after one."""
        if not self._open:
            return
        flags = torch.stack([flag for _, flag in self._open]).tolist()  # the one synchronisation
        bad = [where for (where, _), finite in zip(self._open, flags, strict=True) if not finite]
        if bad:
            raise NonFiniteError(
                f"{bad[0]} holds NaN or infinity: check the inputs and the model's weights."
            )
        self._open.clear()


def _later(device: torch.device) -> bool:
    return device.type == "cuda"
