"""The head of an embedder: find it, see what follows it, capture its input and output."""

from laplace_metric.models.heads._call_errors import shown
from laplace_metric.models.heads._capture import HeadActivations, LocatedHead, capture, run_captured
from laplace_metric.models.heads._locate import APPEND, find_head, identity_head, named_head
from laplace_metric.models.heads._spec import Description, describe, described_head

__all__ = [
    "APPEND",
    "Description",
    "HeadActivations",
    "LocatedHead",
    "capture",
    "describe",
    "described_head",
    "find_head",
    "identity_head",
    "named_head",
    "run_captured",
    "shown",
]
