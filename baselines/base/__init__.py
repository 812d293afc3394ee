"""What the methods share: the contract with files, one way to train, heads for an uncertainty."""

from baselines.base.baseline import UNSAVED, Baseline, OnePass
from baselines.base.concentration import ConcentrationHead, perceptron
from baselines.base.detector import Detector, Memory
from baselines.base.directional import Directional
from baselines.base.fitted import Fitted, Sizes
from baselines.base.trained import Trained
from baselines.base.training import Training

__all__ = [
    "UNSAVED",
    "Baseline",
    "ConcentrationHead",
    "Detector",
    "Directional",
    "Fitted",
    "Memory",
    "OnePass",
    "Sizes",
    "Trained",
    "Training",
    "perceptron",
]
