"""Every method by name.

A post-hoc method is put on the network that metric learning trained with the same seed; the others
train their own, from the same initial weights. A method that shares its only settings with another
takes that choice.
"""

from __future__ import annotations

from dataclasses import replace

from baselines import (
    ELK,
    HETXL,
    HIB,
    PFE,
    SNGP,
    ClassDropout,
    ContrastiveHIB,
    CrossEntropy,
    DeepEnsemble,
    Deterministic,
    ExplicitConcentration,
    InfoNCE,
    KNNDistance,
    LossPrediction,
    Mahalanobis,
    MCInfoNCE,
    MetricLearning,
    NivMF,
    ScottVMF,
    SharedBackboneEnsemble,
    ViM,
)
from benchmarks.methods import spaces
from benchmarks.methods.entry import (
    PASSES,
    Entry,
    contrastive,
    evidence,
    gathered,
    mc_dropout,
    trained,
)
from benchmarks.methods.spaces import between, one_of
from laplace_metric import LaplaceEmbedder

BASE = "metric learning, 1/norm"
RATE = {"learning_rate": 1e-3}
MARGIN = {"margin": 0.5, **RATE}
TEMPERATURE = between("inverse_temperature", 4, 64)
CLASSES = between("class_concentration", 4, 64)
LAPLACE = {"structure": "kron", "hessian": "fixed", "prior_precision": 1.0}

EMBEDDING = (
    Entry(BASE, "embedding", contrastive(MetricLearning), between("margin", 0.3, 1.0), MARGIN),
    Entry("infonce, 1/norm", "embedding", trained(InfoNCE), TEMPERATURE,
          {"inverse_temperature": 16.0, **RATE}),
)  # fmt: skip
POST_HOC = (
    Entry("laplace", "laplace", gathered(LaplaceEmbedder)),
    Entry("laplace, diagonal", "laplace", gathered(LaplaceEmbedder, structure="diag")),
    Entry("laplace, clipped", "laplace", gathered(LaplaceEmbedder, positivity="clip")),
    Entry("laplace, evidence", "laplace", evidence(structure="kron")),
    Entry("laplace, tuned", "laplace", gathered(LaplaceEmbedder), spaces.laplace, LAPLACE),
    Entry("mahalanobis", "detector", gathered(Mahalanobis), one_of("relative", False, True),
          {"relative": False}),
    Entry("k-nn distance", "detector", gathered(KNNDistance), one_of("k", 1, 5, 10, 50, 200),
          {"k": 10}),
    Entry("vim", "detector", gathered(ViM), one_of("dimension", None, 0, 4, 16),
          {"dimension": None}),
    Entry("pfe", "amortised", trained(PFE), between("log_variance", -8, -2, log=False),
          {"log_variance": -5.0, **RATE}),
)  # fmt: skip
VARIANTS = (
    Entry("1/norm", "embedding", gathered(Deterministic)),
    *(
        Entry(
            f"laplace, {distance} {hessian}, diagonal",
            "laplace",
            gathered(LaplaceEmbedder, distance=distance, hessian=hessian, structure="diag"),
        )
        for distance in ("arccos", "euclidean")
        for hessian in ("fixed", "positives", "full")
        if (distance, hessian) != ("arccos", "fixed")  # "laplace, diagonal"
    ),
)
"""Post hoc too, but only where nothing is trained."""
SAMPLED = (
    Entry("mc dropout", "sampled", mc_dropout, spaces.dropout, {"rate": 0.2, **MARGIN}),
    Entry("deep ensemble", "sampled", contrastive(DeepEnsemble), BASE),
)
AMORTISED = (
    Entry("hib", "amortised", trained(HIB), between("log_variance", -8, -1, log=False),
          {"log_variance": -5.0, **RATE}),
    Entry("mcinfonce", "amortised", trained(MCInfoNCE), TEMPERATURE,
          {"inverse_temperature": 16.0, **RATE}),
    Entry("elk", "amortised", trained(ELK, form="pairs"), between("inverse_temperature", 0.25, 4),
          {"inverse_temperature": 1.0, **RATE}),
    Entry("elk, proxies", "amortised", trained(ELK), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("nivmf", "amortised", trained(NivMF), CLASSES, {"class_concentration": 16.0, **RATE}),
    Entry("contrastive hib", "amortised", trained(ContrastiveHIB), spaces.hib,
          {"scale": 16.0, "shift": -8.0, **RATE}),
    Entry("vmf loss", "amortised", trained(ScottVMF), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("explicit concentration", "amortised", trained(ExplicitConcentration),
          between("temperature", 0.05, 0.5), {"temperature": 0.1, **RATE}),
)  # fmt: skip
CLASSIFIERS = (
    Entry("cross-entropy", "classifier", trained(CrossEntropy), spaces.learning_rate, RATE),
    Entry("het-xl", "classifier", trained(HETXL), between("variance", 0.01, 1.0),
          {"variance": 0.1, **RATE}),
    Entry("sngp", "classifier", trained(SNGP), between("lengthscale", 0.5, 4),
          {"lengthscale": 2.0, **RATE}),
    Entry("loss prediction", "classifier", trained(LossPrediction), between("weight", 0.01, 0.99),
          {"weight": 0.1, **RATE}),
    Entry("shared-backbone ensemble", "classifier", trained(SharedBackboneEnsemble),
          spaces.ensemble, {"loss": "mixture", "score": "entropy", **RATE}),
    Entry("dropout over classes", "classifier", trained(ClassDropout),
          between("rate", 0.05, 0.3, log=False), {"rate": 0.2, **RATE}),
)  # fmt: skip
DRAWS = {
    **dict.fromkeys((BASE, "infonce, 1/norm", "mahalanobis", "k-nn distance", "vim", "1/norm"), 1),
    **{entry.name: 1 for entry in CLASSIFIERS if entry.name != "het-xl"},
    **{entry.name: 1 for entry in VARIANTS},
    "mc dropout": PASSES,
    "deep ensemble": 5,
}
ON_TOP = frozenset(entry.name for entry in (*POST_HOC, *VARIANTS))
METHODS = {
    entry.name: replace(entry, draws=DRAWS.get(entry.name, 0), post_hoc=entry.name in ON_TOP)
    for entry in (*EMBEDDING, *POST_HOC, *VARIANTS, *SAMPLED, *AMORTISED, *CLASSIFIERS)
}
