"""Is a hit a match? Calibrated probabilities, rules with a guarantee, conformal sets.

Arrays in, decisions out: NumPy, SciPy and scikit-learn, without torch.

Of an index
    _hits, _engine_hits       what queries found, in an index or by any engine
    _conformal                p-values and quantiles of held-out scores; the score of a first match
    _calibration              all of it, fitted once (_calibrated), saved (_calibration_file): an
                              _assessment of the hits; _calibration_graph: without Python
    _unknown_share            more unknown queries than calibration explains
Of scores of any search
    _calibrate_scores         judged scores -> _score_calibration; the parts are in scores
Of both
    probability               features of a pair -> P(match), and the one split that tests it
    labels                    votes of neighbours -> P(label), and sets of labels
    guarantees                queries that test a guarantee, the guarantee, and the theories
    rules                     a threshold with its guarantee, and what it gives
"""

from laplace_metric.calibration._assessment import CalibratedHits
from laplace_metric.calibration._calibrate_scores import calibrate_scores
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._calibration_file import read_calibration, write_calibration
from laplace_metric.calibration._score_calibration import ScoreCalibration
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import OpenSetFraction
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.calibration.guarantees._theory import Guarantee
from laplace_metric.calibration.rules._answers import Answer, Answers
from laplace_metric.calibration.rules._class_rule import ClassRule
from laplace_metric.calibration.rules._guarantee import guarantee
from laplace_metric.calibration.rules._level_rule import LevelRule
from laplace_metric.calibration.rules._rule import Rule

__all__ = [
    "Answer",
    "Answers",
    "CalibratedHits",
    "Calibration",
    "CalibrationQueries",
    "ClassRule",
    "Guarantee",
    "LevelRule",
    "OpenSetFraction",
    "QueriesNeeded",
    "Rule",
    "ScoreCalibration",
    "calibrate_scores",
    "guarantee",
    "read_calibration",
    "write_calibration",
]
