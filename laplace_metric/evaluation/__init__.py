"""Metrics of retrieval, out-of-distribution detection, calibration and abstention.

Pure functions of tensors, numpy arrays or sequences, one definition each; scores are float64 on
the device of the input.
"""

from __future__ import annotations

from laplace_metric.evaluation.abstention import Abstention, abstention
from laplace_metric.evaluation.calibration import Reliability, expected_calibration_error
from laplace_metric.evaluation.failure import r_auroc
from laplace_metric.evaluation.intervals import (
    BootstrapInterval,
    SeedSummary,
    bootstrap_interval,
    bootstrap_replicates,
    mean_and_standard_error,
)
from laplace_metric.evaluation.neighbours import Neighbours, nearest_neighbours
from laplace_metric.evaluation.ood import RocCurve, auprc, auroc, fpr_at_tpr, roc_curve
from laplace_metric.evaluation.ranks import spearman
from laplace_metric.evaluation.retrieval import (
    RetrievalScore,
    map_at_k,
    map_at_r,
    recall_at_k,
    retrieval_report,
)
from laplace_metric.evaluation.retrieval_calibration import Calibration, retrieval_calibration
from laplace_metric.evaluation.sparsification import Sparsification, sparsification

__all__ = [
    "Abstention",
    "BootstrapInterval",
    "Calibration",
    "Neighbours",
    "Reliability",
    "RetrievalScore",
    "RocCurve",
    "SeedSummary",
    "Sparsification",
    "abstention",
    "auprc",
    "auroc",
    "bootstrap_interval",
    "bootstrap_replicates",
    "expected_calibration_error",
    "fpr_at_tpr",
    "map_at_k",
    "map_at_r",
    "mean_and_standard_error",
    "nearest_neighbours",
    "r_auroc",
    "recall_at_k",
    "retrieval_calibration",
    "retrieval_report",
    "roc_curve",
    "sparsification",
    "spearman",
]
