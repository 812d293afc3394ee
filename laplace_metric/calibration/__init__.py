"""Is a hit a match? Calibrated probabilities, thresholds with a guarantee, conformal sets.

_hits           what queries found: distances, labels of neighbours, votes
_probability    score of a hit -> match probability; _calibrators
_thresholds     smallest probability that is accepted, with a guarantee; _sequences, _quality
_conformal      p-values and sets
_calibration    all of it, fitted once; _apply judges the hits of any engine
"""

from laplace_metric.calibration._apply import Verdict
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._learn import read_calibration, write_calibration
from laplace_metric.calibration._sequences import QueriesNeeded
from laplace_metric.calibration._thresholds import Threshold, threshold_for

__all__ = [
    "Calibration",
    "QueriesNeeded",
    "Threshold",
    "Verdict",
    "read_calibration",
    "threshold_for",
    "write_calibration",
]
