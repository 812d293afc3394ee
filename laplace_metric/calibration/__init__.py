"""Is a hit a match? Calibrated probabilities, rules with a guarantee, conformal sets.

Arrays in, decisions out: NumPy, SciPy and scikit-learn, without torch.

Of an index
    _hits, _votes             what queries found, and what labels of neighbours say
    _label_posterior          a query -> P(label); _label_sets: sets that hold it
    _conformal                p-values and quantiles of held-out scores; the score of a first match
    _calibration              all of it, fitted once (_learn), saved (_saved): an _assessment of the
                              hits of an index, or of any engine (_engine_hits)
    _unknown_share            more unknown queries than calibration explains
Of scores of any search
    _calibrate_scores         judged scores -> _score_calibration, a value of _scored_queries, by
                              _score_features and _score_model; _numbers, _qrels read arguments,
                              _padding knows places without a hit, _copies repeated queries
Of both
    _held_out                 the one split: a fit, and what fits to other queries say of each
    _features                 evidence of each pair: of hits, or by _score_features
    _match_probability        its probability: _logistic_score, then one of _calibrators
    guarantees                queries that test a guarantee, the guarantee, and the theories
    _rule, _answers           a threshold with its guarantee, what it gives; _compared: the one
                              comparison, of answers with the calibration that tested the rule
    _calibration_graph, _rule_graph   graphs without Python, for which torch is needed
"""

from laplace_metric.calibration._answers import Answer, Answers
from laplace_metric.calibration._assessment import CalibratedHits
from laplace_metric.calibration._calibrate_scores import calibrate_scores
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._class_rule import ClassRule
from laplace_metric.calibration._guarantee import guarantee
from laplace_metric.calibration._rule import Rule
from laplace_metric.calibration._saved import read_calibration, write_calibration
from laplace_metric.calibration._score_calibration import ScoreCalibration
from laplace_metric.calibration.guarantees._calibration_queries import CalibrationQueries
from laplace_metric.calibration.guarantees._open_set_fraction import OpenSetFraction
from laplace_metric.calibration.guarantees._queries_needed import QueriesNeeded
from laplace_metric.calibration.guarantees._theory import Guarantee

__all__ = [
    "Answer",
    "Answers",
    "CalibratedHits",
    "Calibration",
    "CalibrationQueries",
    "ClassRule",
    "Guarantee",
    "OpenSetFraction",
    "QueriesNeeded",
    "Rule",
    "ScoreCalibration",
    "calibrate_scores",
    "guarantee",
    "read_calibration",
    "write_calibration",
]
