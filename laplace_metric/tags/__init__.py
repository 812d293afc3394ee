"""Labels that are sets: tags of an item, and the tags that a query gets with a guarantee.

_tag_sets      sets of tags, read from lists or a matrix
_tagged_items  items, tags of the nearest of them, and how much speaks for each
_tag_answers   the tags of queries
_tag_guard     TagGuard: which tags to give
"""

from laplace_metric.tags._tag_answers import TagAnswers, TagReport
from laplace_metric.tags._tag_guard import TagGuard
from laplace_metric.tags._tag_sets import rows_by_tag

__all__ = ["TagAnswers", "TagGuard", "TagReport", "rows_by_tag"]
