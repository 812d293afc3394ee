"""Fits that outgrow one process: several ranks, and checkpoints."""

from laplace_metric.laplace.runtime._checkpoint import Checkpoint, open_checkpoint
from laplace_metric.laplace.runtime._executor import Site
from laplace_metric.laplace.runtime._group import Ranks, agreed_head

__all__ = ["Checkpoint", "Ranks", "Site", "agreed_head", "open_checkpoint"]
