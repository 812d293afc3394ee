"""Methods to compare with, each with the contract of ``LaplaceEmbedder``: one file a method."""

from baselines.asymvlm import AsymVLM
from baselines.base import Training
from baselines.class_dropout import ClassDropout
from baselines.contrastive_hib import ContrastiveHIB
from baselines.cosine_discount import cosine_discount
from baselines.cross_entropy import CrossEntropy
from baselines.deep_ensemble import DeepEnsemble
from baselines.deterministic import Deterministic
from baselines.elk import ELK
from baselines.explicit_concentration import ExplicitConcentration
from baselines.failure_predictor import FailurePredictor
from baselines.flow_density import FlowDensity
from baselines.frozen_loss_prediction import FrozenLossPrediction
from baselines.gplvm import GPLVM
from baselines.het_xl import HETXL
from baselines.hib import HIB
from baselines.infonce import InfoNCE
from baselines.knn_distance import KNNDistance
from baselines.loss_prediction import LossPrediction
from baselines.mahalanobis import Mahalanobis
from baselines.mc_dropout import MCDropout
from baselines.mcinfonce import MCInfoNCE
from baselines.metric_learning import MetricLearning
from baselines.nivmf import NivMF
from baselines.nnguide import NNGuide
from baselines.nuq import NUQ
from baselines.pfe import PFE
from baselines.probvlm import ProbVLM
from baselines.scott_vmf import ScottVMF
from baselines.shared_backbone_ensemble import SharedBackboneEnsemble
from baselines.sngp import SNGP
from baselines.vim import ViM

__all__ = [
    "ELK",
    "GPLVM",
    "HETXL",
    "HIB",
    "NUQ",
    "PFE",
    "SNGP",
    "AsymVLM",
    "ClassDropout",
    "ContrastiveHIB",
    "CrossEntropy",
    "DeepEnsemble",
    "Deterministic",
    "ExplicitConcentration",
    "FailurePredictor",
    "FlowDensity",
    "FrozenLossPrediction",
    "InfoNCE",
    "KNNDistance",
    "LossPrediction",
    "MCDropout",
    "MCInfoNCE",
    "Mahalanobis",
    "MetricLearning",
    "NNGuide",
    "NivMF",
    "ProbVLM",
    "ScottVMF",
    "SharedBackboneEnsemble",
    "Training",
    "ViM",
    "cosine_discount",
]
