"""Methods to compare with, each with the contract of ``LaplaceEmbedder``: one file a method."""

from baselines.deterministic import Deterministic
from baselines.mc_dropout import MCDropout
from baselines.pfe import PFE

__all__ = ["PFE", "Deterministic", "MCDropout"]
