"""The head of an embedder: find it, see what follows it, capture its input and output."""

from laplace_metric.heads.capture import Captured, Head, capture, run_captured
from laplace_metric.heads.find import APPEND, find_head, identity_head, named_head

__all__ = [
    "APPEND",
    "Captured",
    "Head",
    "capture",
    "find_head",
    "identity_head",
    "named_head",
    "run_captured",
]
