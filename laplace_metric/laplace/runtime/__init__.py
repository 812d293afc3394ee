"""Fits that outgrow one process: several ranks, and checkpoints."""

from laplace_metric.laplace.runtime._checkpoint import Checkpoint, open_checkpoint
from laplace_metric.laplace.runtime._executor import PassExecutor
from laplace_metric.laplace.runtime._group import ProcessGroup, agreed_head

__all__ = ["Checkpoint", "PassExecutor", "ProcessGroup", "agreed_head", "open_checkpoint"]
