"""Is a hit a match? Calibrated probabilities, thresholds with a guarantee, conformal sets.

Arrays in, decisions out: NumPy, SciPy and scikit-learn, without torch.

_hits           what queries found: distances, labels of neighbours, votes, features
_probability    score of a hit -> match probability
_labels         the label of a query, and sets of labels
_conformal      p-values and quantiles
_scores         decisions for scores of any search, without items, labels or a posterior; made by
                _calibrate_scores, from the features of _score_model; _numbers reads arguments,
                _padding knows places without a hit, _qrels relevance by ids, _copies repeated
                queries, _prevalence a share of open-set queries that moved
_thresholds     smallest probability that is accepted, with a guarantee; _sequences tests them
_calibration    all of it, fitted once (_learn) and saved (_saved); _apply reads the hits of any
                engine
_export         as one graph, for which torch is needed
"""

from laplace_metric.calibration._apply import Verdict
from laplace_metric.calibration._calibrate_scores import calibrate_scores
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._prevalence import OpenSetFraction
from laplace_metric.calibration._saved import read_calibration, write_calibration
from laplace_metric.calibration._scores import DecisionRule, ScoreCalibration
from laplace_metric.calibration._sequences import QueriesNeeded
from laplace_metric.calibration._thresholds import Threshold, threshold_for

__all__ = [
    "Calibration",
    "DecisionRule",
    "OpenSetFraction",
    "QueriesNeeded",
    "ScoreCalibration",
    "Threshold",
    "Verdict",
    "calibrate_scores",
    "read_calibration",
    "threshold_for",
    "write_calibration",
]
