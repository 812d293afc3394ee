"""``laplace-metric serve``: searches over HTTP, with what a server needs around them.

bytes -> ``Question`` -> ``QueryReader`` -> ``Worker`` (one thread, the model) -> ``SearchAnswer``

``SearchService`` is all of that, without HTTP; ``_http`` and ``_guard`` put it behind FastAPI,
which only ``laplace-metric serve`` imports. Answers are those of ``Index.search``. Queries that
wait for the model go in together, up to ``--batch``.
"""

from laplace_metric.cli.serve._answers import EmbedAnswer, NeighbourAnswer, SearchAnswer
from laplace_metric.cli.serve._drift import DriftSummary, DriftWatch, calibration_reference
from laplace_metric.cli.serve._limits import Limits, RequestRefused
from laplace_metric.cli.serve._metrics import ServerMetrics
from laplace_metric.cli.serve._question import Question
from laplace_metric.cli.serve._reader import QueryReader
from laplace_metric.cli.serve._service import SearchService, ServedIndex

__all__ = [
    "DriftSummary",
    "DriftWatch",
    "EmbedAnswer",
    "Limits",
    "NeighbourAnswer",
    "QueryReader",
    "Question",
    "RequestRefused",
    "SearchAnswer",
    "SearchService",
    "ServedIndex",
    "ServerMetrics",
    "calibration_reference",
]
