"""Nearest neighbours of uncertain embeddings, and whether they are a match.

_index          the public class around ``_items``, saved by ``_storage``; estimators: scikit-learn
_encoder        inputs -> ``_encoded``; _ensemble_encoder: of several; _protocols: what is needed
engines, rank   which rows are nearest, and by what
classes         the class model, sets of labels, labels to look at
_views          several views of one thing as one query
_pair_distances distances of pairs; _expected_vectors: vectors whose distance is the expected one
_cross_fit      an index that its own items calibrate; _refit: fits without some of them
_relevance      which hits are a match; _near_copies, _equal_vectors, _trained_items: what is amiss
_evaluate       a ``_report`` of queries with labels
"""

from laplace_metric.search._answer_report import AnswerReport
from laplace_metric.search._cross_fit import cross_index
from laplace_metric.search._index import Index
from laplace_metric.search._report import IndexReport
from laplace_metric.search._result import SearchResult
from laplace_metric.search.classes._label_review import LabelReview
from laplace_metric.search.classes._label_sets import LabelSets, RetrievalSets
from laplace_metric.search.engines._engine import HNSW, IVF, Flat
from laplace_metric.search.rank._rankings import Predictive

__all__ = [
    "HNSW",
    "IVF",
    "AnswerReport",
    "Flat",
    "Index",
    "IndexReport",
    "LabelReview",
    "LabelSets",
    "Predictive",
    "RetrievalSets",
    "SearchResult",
    "cross_index",
]
