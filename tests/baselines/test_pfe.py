from __future__ import annotations

from baselines import PFE
from baselines.base import Training
from tests.baselines.contract import MethodContract


class TestPFE(MethodContract):
    def make(self, model):
        return PFE(model, training=Training(epochs=2), hidden=8)
