"""Fits that outgrow one process: several ranks, and checkpoints. Imported when one is asked for."""

from laplace_metric.laplace.runtime._checkpoint import Checkpoint, open_checkpoint
from laplace_metric.laplace.runtime._executor import PassExecutor
from laplace_metric.laplace.runtime._fit import agreed_head, fit_with_runtime
from laplace_metric.laplace.runtime._group import ProcessGroup

__all__ = [
    "Checkpoint",
    "PassExecutor",
    "ProcessGroup",
    "agreed_head",
    "fit_with_runtime",
    "open_checkpoint",
]
