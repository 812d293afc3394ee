"""Methods to compare with, each with the contract of ``LaplaceEmbedder``: one file a method."""

from baselines.class_dropout import ClassDropout
from baselines.cross_entropy import CrossEntropy
from baselines.deterministic import Deterministic
from baselines.het_xl import HETXL
from baselines.knn_distance import KNNDistance
from baselines.loss_prediction import LossPrediction
from baselines.mahalanobis import Mahalanobis
from baselines.mc_dropout import MCDropout
from baselines.pfe import PFE
from baselines.shared_backbone_ensemble import SharedBackboneEnsemble
from baselines.sngp import SNGP
from baselines.vim import ViM

__all__ = [
    "HETXL",
    "PFE",
    "SNGP",
    "ClassDropout",
    "CrossEntropy",
    "Deterministic",
    "KNNDistance",
    "LossPrediction",
    "MCDropout",
    "Mahalanobis",
    "SharedBackboneEnsemble",
    "ViM",
]
