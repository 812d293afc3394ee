"""The head of an embedder: locate it, see what follows it, capture its input and output."""

from laplace_metric.models.heads._activations import HeadActivations, LocatedHead, SeenInputs
from laplace_metric.models.heads._call_errors import shown
from laplace_metric.models.heads._capture import (
    capture,
    embeddings_from,
    run_captured,
)
from laplace_metric.models.heads._checks import FittedWeights, check_rows
from laplace_metric.models.heads._locate import (
    APPEND,
    find_head,
    identity_head,
    locate_head,
)
from laplace_metric.models.heads._pointwise import PointwiseHead, averaged
from laplace_metric.models.heads._spec import (
    HeadSpec,
    head_from_spec,
    head_spec,
    named_head,
)

__all__ = [
    "APPEND",
    "FittedWeights",
    "HeadActivations",
    "HeadSpec",
    "LocatedHead",
    "PointwiseHead",
    "SeenInputs",
    "averaged",
    "capture",
    "check_rows",
    "embeddings_from",
    "find_head",
    "head_from_spec",
    "head_spec",
    "identity_head",
    "locate_head",
    "named_head",
    "run_captured",
    "shown",
]
