"""Metrics of retrieval, out-of-distribution detection, calibration and abstention.

Pure functions of tensors, numpy arrays or sequences, one definition each; scores are float64 on
the device of the input.
"""

from laplace_metric.evaluation._abstention import Abstention, abstention
from laplace_metric.evaluation._bootstrap import bootstrap_interval
from laplace_metric.evaluation._nearest_neighbours import nearest_neighbours
from laplace_metric.evaluation._reliability import Reliability, expected_calibration_error
from laplace_metric.evaluation._retrieval import map_at_k, map_at_r, recall_at_k
from laplace_metric.evaluation._retrieval_calibration import retrieval_calibration
from laplace_metric.evaluation._roc import auprc, auroc, fpr_at_tpr, r_auroc
from laplace_metric.evaluation._sparsification import Sparsification, sparsification

__all__ = [
    "Abstention",
    "Reliability",
    "Sparsification",
    "abstention",
    "auprc",
    "auroc",
    "bootstrap_interval",
    "expected_calibration_error",
    "fpr_at_tpr",
    "map_at_k",
    "map_at_r",
    "nearest_neighbours",
    "r_auroc",
    "recall_at_k",
    "retrieval_calibration",
    "sparsification",
]
