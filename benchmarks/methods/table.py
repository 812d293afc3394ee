"""Every method by name.

A post-hoc method is put on the network that metric learning trained with the same seed; the others
train their own, from the same initial weights. A method that shares its only settings with another
takes that choice.
"""

from __future__ import annotations

from dataclasses import replace

import baselines
from benchmarks.methods import entry as spaces
from benchmarks.methods.entry import PASSES, Entry, contrastive, evidence, gathered, trained
from laplace_metric import LaplaceEmbedder

BASE = "metric learning, 1/norm"
RATE = {"learning_rate": 1e-3}
MARGIN = {"margin": 0.5, **RATE}
TEMPERATURE = spaces.between("inverse_temperature", 4, 64)
CLASSES = spaces.between("class_concentration", 4, 64)
FEATURES, UNCERTAINTY = "features", "uncertainty"
LAPLACE = {"structure": "kron", "hessian": "fixed", "prior_precision": "auto"}

EMBEDDING = (
    Entry(BASE, "embedding", contrastive(baselines.MetricLearning),
          spaces.between("margin", 0.3, 1.0), MARGIN),
    Entry("infonce, 1/norm", "embedding", trained(baselines.InfoNCE), TEMPERATURE,
          {"inverse_temperature": 16.0, **RATE}),
)  # fmt: skip
POST_HOC = (
    Entry("laplace", "laplace", gathered(LaplaceEmbedder)),
    Entry("laplace, diagonal", "laplace", gathered(LaplaceEmbedder, structure="diag")),
    Entry("laplace, clipped", "laplace",
          gathered(LaplaceEmbedder, positivity="clip", prior_precision=1.0)),
    Entry("laplace, evidence", "laplace", evidence(structure="kron")),
    Entry("laplace, tuned", "laplace", gathered(LaplaceEmbedder), spaces.laplace_space, LAPLACE),
    Entry("laplace, epistemic", "laplace", gathered(LaplaceEmbedder), number="epistemic"),
    Entry("laplace, near", "laplace", gathered(LaplaceEmbedder), number="near"),
    Entry("laplace, far", "laplace", gathered(LaplaceEmbedder), number="far"),
    Entry("laplace, ambiguity", "laplace", gathered(LaplaceEmbedder), number="ambiguity"),
    Entry("laplace, match", "laplace", gathered(LaplaceEmbedder), number="match"),
    Entry("mahalanobis", "detector", gathered(baselines.Mahalanobis),
          spaces.one_of("relative", False, True), {"relative": False}),
    Entry("mahalanobis++", "detector",
          gathered(baselines.Mahalanobis, normalise=True, on=FEATURES)),
    Entry("relative mahalanobis", "detector",
          gathered(baselines.Mahalanobis, relative=True, on=FEATURES)),
    Entry("k-nn distance", "detector", gathered(baselines.KNNDistance),
          spaces.one_of("k", 1, 5, 10, 50, 200), {"k": 10}),
    Entry("k-nn distance, features", "detector",
          gathered(baselines.KNNDistance, k=10, on=FEATURES)),
    Entry("vim", "detector", gathered(baselines.ViM), spaces.one_of("dimension", None, 0, 4, 16),
          {"dimension": None}),
    Entry("nuq", "detector", gathered(baselines.NUQ, normalise=True)),
    Entry("nnguide", "detector", gathered(baselines.NNGuide)),
    Entry("loss prediction, frozen", "detector", gathered(baselines.FrozenLossPrediction)),
    Entry("pfe", "amortised", trained(baselines.PFE),
          spaces.between("log_variance", -8, -2, log=False), {"log_variance": -5.0, **RATE}),
)  # fmt: skip
VARIANTS = (
    Entry("1/norm", "embedding", gathered(baselines.Deterministic)),
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
    Entry(
        "mc dropout", "sampled", spaces.mc_dropout, spaces.dropout_space, {"rate": 0.2, **MARGIN}
    ),
    Entry("deep ensemble", "sampled", contrastive(baselines.DeepEnsemble), BASE),
)
AMORTISED = (
    Entry("hib", "amortised", trained(baselines.HIB),
          spaces.between("log_variance", -8, -1, log=False), {"log_variance": -5.0, **RATE}),
    Entry("mcinfonce", "amortised", trained(baselines.MCInfoNCE), TEMPERATURE,
          {"inverse_temperature": 16.0, **RATE}),
    Entry("elk", "amortised", trained(baselines.ELK, form="pairs"),
          spaces.between("inverse_temperature", 0.25, 4), {"inverse_temperature": 1.0, **RATE}),
    Entry("elk, proxies", "amortised", trained(baselines.ELK), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("nivmf", "amortised", trained(baselines.NivMF), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("nivmf, as printed", "amortised", trained(baselines.NivMF, form="printed"), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("contrastive hib", "amortised", trained(baselines.ContrastiveHIB), spaces.hib_space,
          {"scale": 16.0, "shift": -8.0, **RATE}),
    Entry("vmf loss", "amortised", trained(baselines.ScottVMF), CLASSES,
          {"class_concentration": 16.0, **RATE}),
    Entry("explicit concentration", "amortised", trained(baselines.ExplicitConcentration),
          spaces.between("temperature", 0.05, 0.5), {"temperature": 0.1, **RATE}),
)  # fmt: skip
CLASSIFIERS = (
    Entry("cross-entropy", "classifier", trained(baselines.CrossEntropy),
          spaces.learning_rate, RATE),
    Entry("het-xl", "classifier", trained(baselines.HETXL), spaces.between("variance", 0.01, 1.0),
          {"variance": 0.1, **RATE}),
    Entry("het-xl, class entropy", "classifier", trained(baselines.HETXL, score="entropy"),
          "het-xl"),
    Entry("sngp", "classifier", trained(baselines.SNGP), spaces.between("lengthscale", 0.5, 4),
          {"lengthscale": 2.0, **RATE}),
    Entry("loss prediction", "classifier", trained(baselines.LossPrediction),
          spaces.between("weight", 0.01, 0.99), {"weight": 0.1, **RATE}),
    Entry("shared-backbone ensemble", "classifier", trained(baselines.SharedBackboneEnsemble),
          spaces.ensemble_space, {"loss": "mixture", "score": "entropy", **RATE}),
    Entry("dropout over classes", "classifier", trained(baselines.ClassDropout),
          spaces.between("rate", 0.05, 0.3, log=False), {"rate": 0.2, **RATE}),
)  # fmt: skip
POINTS = (
    BASE, "infonce, 1/norm", "1/norm",
    *(entry.name for entry in POST_HOC if entry.group == "detector" or entry.number != UNCERTAINTY),
    *(entry.name for entry in VARIANTS),
    *(entry.name for entry in CLASSIFIERS if entry.name[:6] != "het-xl"),
)  # fmt: skip
DRAWS = {**dict.fromkeys(POINTS, 1), "mc dropout": PASSES, "deep ensemble": 5}
ON_TOP = frozenset(entry.name for entry in (*POST_HOC, *VARIANTS))
METHODS = {
    entry.name: replace(
        entry,
        draws=DRAWS.get(entry.name, 0),
        base=BASE if entry.name in ON_TOP else entry.base,
    )
    for entry in (
        *EMBEDDING, *POST_HOC, *VARIANTS, *SAMPLED, *AMORTISED, *CLASSIFIERS
    )
}  # fmt: skip
