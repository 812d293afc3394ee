"""Metrics of retrieval, out-of-distribution detection, calibration and abstention.

Pure functions of tensors, numpy arrays or sequences, one definition each; scores are float64 on
the device of the input.
"""

from laplace_metric.evaluation._calibration import (
    Reliability,
    expected_calibration_error,
    retrieval_calibration,
)
from laplace_metric.evaluation._intervals import bootstrap_interval
from laplace_metric.evaluation._ranking import (
    Abstention,
    Sparsification,
    abstention,
    auprc,
    auroc,
    fpr_at_tpr,
    r_auroc,
    sparsification,
)
from laplace_metric.evaluation._retrieval import map_at_k, map_at_r, nearest_neighbours, recall_at_k

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
