"""One training loop for embedders, plain or with a posterior."""

from laplace_metric.training._loop import (
    Callback,
    Loss,
    Progress,
    Step,
    check_loss,
    check_loss_type,
    check_training,
    default_optimizer,
    descend,
    train_epochs,
    train_mode,
)
from laplace_metric.training._plain import train_embedder

__all__ = [
    "Callback",
    "Loss",
    "Progress",
    "Step",
    "check_loss",
    "check_loss_type",
    "check_training",
    "default_optimizer",
    "descend",
    "train_embedder",
    "train_epochs",
    "train_mode",
]
