"""Methods to compare with, each with the contract of ``LaplaceEmbedder``: one file a method."""

from baselines.base import Training
from baselines.contrastive_hib import ContrastiveHIB
from baselines.deep_ensemble import DeepEnsemble
from baselines.deterministic import Deterministic
from baselines.elk import ELK
from baselines.explicit_concentration import ExplicitConcentration
from baselines.hib import HIB
from baselines.infonce import InfoNCE
from baselines.mc_dropout import MCDropout
from baselines.mcinfonce import MCInfoNCE
from baselines.metric_learning import MetricLearning
from baselines.nivmf import NivMF
from baselines.pfe import PFE
from baselines.scott_vmf import ScottVMF

__all__ = [
    "ELK",
    "HIB",
    "PFE",
    "ContrastiveHIB",
    "DeepEnsemble",
    "Deterministic",
    "ExplicitConcentration",
    "InfoNCE",
    "MCDropout",
    "MCInfoNCE",
    "MetricLearning",
    "NivMF",
    "ScottVMF",
    "Training",
]
