"""Is it a match? Probabilities, thresholds with a promise, conformal sets and tests."""

from laplace_metric.search.match._apply import Verdict
from laplace_metric.search.match._calibration import (
    Calibration,
    Judgement,
)
from laplace_metric.search.match._conformal import conformal_quantile, credible_radius, p_values
from laplace_metric.search.match._hits import LabelledHits, PairFeatures, SearchHits
from laplace_metric.search.match._json import read_calibration, write_calibration
from laplace_metric.search.match._labels import HeldOutLabels, LabelLevels, fewest_queries
from laplace_metric.search.match._learn import calibrated
from laplace_metric.search.match._probability import MatchProbability
from laplace_metric.search.match._quality import Quality, quality
from laplace_metric.search.match._shortfall import Shortfall, shortfall
from laplace_metric.search.match._thresholds import (
    Threshold,
    accepts,
    largest_promise,
    threshold_for,
)
from laplace_metric.search.match._votes import VOTES, LabelVotes

__all__ = [
    "VOTES",
    "Calibration",
    "HeldOutLabels",
    "Judgement",
    "LabelLevels",
    "LabelVotes",
    "LabelledHits",
    "MatchProbability",
    "PairFeatures",
    "Quality",
    "SearchHits",
    "Shortfall",
    "Threshold",
    "Verdict",
    "accepts",
    "calibrated",
    "conformal_quantile",
    "credible_radius",
    "fewest_queries",
    "largest_promise",
    "p_values",
    "quality",
    "read_calibration",
    "shortfall",
    "threshold_for",
    "write_calibration",
]
