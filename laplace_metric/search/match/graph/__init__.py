"""A calibration as one graph in a file: neighbours in, probabilities out, no Python needed."""

from laplace_metric.search.match.graph._export import VerdictGraph, write_verdict
from laplace_metric.search.match.graph._module import VerdictModule

__all__ = ["VerdictGraph", "VerdictModule", "write_verdict"]
