"""Metrics of retrieval, out-of-distribution detection, calibration and abstention.

Pure functions of tensors, numpy arrays or sequences, one definition each; scores are float64 on
the device of the input.
"""

from laplace_metric.evaluation._calibration import (
    Reliability,
    RetrievalCalibration,
    expected_calibration_error,
    retrieval_calibration,
)
from laplace_metric.evaluation._intervals import (
    BootstrapInterval,
    SeedSummary,
    bootstrap_interval,
    bootstrap_replicates,
    mean_and_standard_error,
)
from laplace_metric.evaluation._protocol import (
    DEPTH,
    Embedded,
    MethodResult,
    evaluate_method,
)
from laplace_metric.evaluation._ranking import (
    RocCurve,
    auprc,
    auroc,
    fpr_at_tpr,
    mann_whitney,
    r_auroc,
    roc_curve,
    spearman,
)
from laplace_metric.evaluation._retrieval import (
    RetrievalScore,
    map_at_k,
    map_at_r,
    recall_at_k,
    retrieval_report,
)
from laplace_metric.evaluation._shares import share_interval
from laplace_metric.evaluation._sparsification import (
    Abstention,
    Sparsification,
    abstention,
    sparsification,
)
from laplace_metric.evaluation.neighbours import Neighbours, nearest_neighbours

__all__ = [
    "DEPTH",
    "Abstention",
    "BootstrapInterval",
    "Embedded",
    "MethodResult",
    "Neighbours",
    "Reliability",
    "RetrievalCalibration",
    "RetrievalScore",
    "RocCurve",
    "SeedSummary",
    "Sparsification",
    "abstention",
    "auprc",
    "auroc",
    "bootstrap_interval",
    "bootstrap_replicates",
    "evaluate_method",
    "expected_calibration_error",
    "fpr_at_tpr",
    "mann_whitney",
    "map_at_k",
    "map_at_r",
    "mean_and_standard_error",
    "nearest_neighbours",
    "r_auroc",
    "recall_at_k",
    "retrieval_calibration",
    "retrieval_report",
    "roc_curve",
    "share_interval",
    "sparsification",
    "spearman",
]
