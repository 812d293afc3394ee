"""Shared parts: the contract with files, one way to train, heads for an uncertainty."""

from baselines.base.baseline import Baseline, OnePass
from baselines.base.classifiers import ClassifierDetector
from baselines.base.detector import Detector, Memory
from baselines.base.directional import Directional
from baselines.base.parts import FittedParts, Sizes
from baselines.base.settings import UNSAVED, Training
from baselines.base.trained import Trained

__all__ = [
    "UNSAVED",
    "Baseline",
    "ClassifierDetector",
    "Detector",
    "Directional",
    "FittedParts",
    "Memory",
    "OnePass",
    "Sizes",
    "Trained",
    "Training",
]
