"""Is it a match? Probabilities, thresholds with a promise, conformal sets and tests."""

from laplace_metric.matching.calibration import Calibration
from laplace_metric.matching.conformal import lowest_typical, p_values
from laplace_metric.matching.credible import credible_radius
from laplace_metric.matching.hits import Hits
from laplace_metric.matching.probability import MatchProbability
from laplace_metric.matching.quality import Quality, quality
from laplace_metric.matching.thresholds import Threshold, threshold_for

__all__ = [
    "Calibration",
    "Hits",
    "MatchProbability",
    "Quality",
    "Threshold",
    "credible_radius",
    "lowest_typical",
    "p_values",
    "quality",
    "threshold_for",
]
