"""Is a hit a match? Calibrated probabilities, rules with a guarantee, conformal sets.

Arrays in, decisions out: NumPy, SciPy and scikit-learn, without torch.

_hits               what queries found: distances, labels of neighbours, votes, features
_probability        score of a hit -> match probability
_labels             the label of a query, and sets of labels
_calibration        all of it, fitted once (_learn) and saved (_saved); gives an _assessment of the
                    hits of an index, _calibrated_hits of any engine (_engine_hits)
_score_calibration  probabilities of scores of any search (_scored_queries), made by
                    _calibrate_scores from the features of _score_model; _numbers reads arguments,
                    _padding knows places without a hit, _qrels relevance by ids, _copies repeated
                    queries
_calibration_queries  the queries that test a guarantee, of both kinds; the theories are in
                    guarantees, a file each
_rule               a threshold with what is guaranteed, and the one comparison; gives _answers
_unknown_share      more unknown queries than calibration explains
_export             a calibration or a rule as a graph, for which torch is needed
"""

from laplace_metric.calibration._answers import Answer, Answers
from laplace_metric.calibration._calibrate_scores import calibrate_scores
from laplace_metric.calibration._calibrated_hits import CalibratedHits
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._calibration_queries import CalibrationQueries
from laplace_metric.calibration._guarantee import guarantee
from laplace_metric.calibration._rule import Rule
from laplace_metric.calibration._saved import read_calibration, write_calibration
from laplace_metric.calibration._score_calibration import ScoreCalibration
from laplace_metric.calibration.guarantees._open_set_fraction import OpenSetFraction
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded

__all__ = [
    "Answer",
    "Answers",
    "CalibratedHits",
    "Calibration",
    "CalibrationQueries",
    "OpenSetFraction",
    "QueriesNeeded",
    "Rule",
    "ScoreCalibration",
    "calibrate_scores",
    "guarantee",
    "read_calibration",
    "write_calibration",
]
