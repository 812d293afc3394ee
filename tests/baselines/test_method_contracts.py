"""Every trained method keeps the contract."""

from __future__ import annotations

import torch

from baselines import (
    ELK,
    HIB,
    PFE,
    ContrastiveHIB,
    DeepEnsemble,
    Deterministic,
    ExplicitConcentration,
    InfoNCE,
    MCInfoNCE,
    MetricLearning,
    NivMF,
    ScottVMF,
)
from baselines.base import Training
from tests.baselines.contract import MethodContract

QUICK = Training(epochs=2)


class TestDeterministic(MethodContract):
    needs_two_classes = False

    def make(self, model):
        return Deterministic(model)


class TestMetricLearning(MethodContract):
    def make(self, model):
        return MetricLearning(model, training=QUICK)


class TestInfoNCE(MethodContract):
    def make(self, model):
        return InfoNCE(model, training=QUICK)


class TestPFE(MethodContract):
    def make(self, model):
        return PFE(model, training=QUICK, hidden=8)


class TestHIB(MethodContract):
    def make(self, model):
        return HIB(model, training=QUICK, hidden=8)


class TestMCInfoNCE(MethodContract):
    def make(self, model):
        return MCInfoNCE(model, training=QUICK, hidden=8)


class TestMCInfoNCEOfTheNorm(MethodContract):
    def make(self, model):
        return MCInfoNCE(model, training=QUICK, concentration="norm")


class TestFrozenMCInfoNCE(MethodContract):
    def make(self, model):
        return MCInfoNCE(model, training=QUICK, hidden=8, frozen=True)


class TestELK(MethodContract):
    def make(self, model):
        return ELK(model, training=QUICK, hidden=8)


class TestELKOfPairs(MethodContract):
    def make(self, model):
        return ELK(model, training=QUICK, hidden=8, form="pairs")


class TestNivMF(MethodContract):
    def make(self, model):
        return NivMF(model, training=QUICK, hidden=8)


class TestContrastiveHIB(MethodContract):
    def make(self, model):
        return ContrastiveHIB(model, training=QUICK, hidden=8)


class TestScottVMF(MethodContract):
    def make(self, model):
        return ScottVMF(model, training=QUICK)


class TestExplicitConcentration(MethodContract):
    def make(self, model):
        return ExplicitConcentration(model, training=QUICK, hidden=8)


class TestBYOL(MethodContract):
    needs_two_classes = False  # two views of an input are its positives

    def make(self, model):
        def jitter(x):
            return x + 0.1 * torch.randn_like(x)

        return ExplicitConcentration(model, training=QUICK, hidden=8, base="byol", augment=jitter)


class TestDeepEnsemble(MethodContract):
    def make(self, model):
        return DeepEnsemble(model, n_members=2, training=QUICK)
