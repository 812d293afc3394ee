"""A linear probe on the embeddings, and whether the uncertainty finds its errors."""

from __future__ import annotations

import torch
from scipy.stats import mannwhitneyu
from sklearn.linear_model import LogisticRegression

from benchmarks.engine.scores import Score, mean, resampled
from benchmarks.engine.subject import Subject
from laplace_metric.evaluation import r_auroc

TRAINED = 5_000


def failures(subject: Subject, n: int) -> dict[str, Score | float]:
    """Accuracy of the probe, AUROC of the uncertainty of its errors, Mann-Whitney's p-value."""
    train = subject.embed(subject.task.train.spread(TRAINED))
    probe = LogisticRegression(max_iter=1_000)
    probe.fit(train.mean.numpy(), train.labels.numpy())
    predicted = torch.from_numpy(probe.predict(subject.known.mean.numpy()))
    right = (predicted == subject.known.labels).double()
    unsure = subject.known.uncertainty.double()
    test = mannwhitneyu(unsure[right == 0], unsure[right == 1], alternative="greater")
    return {
        "probe accuracy": mean(right, n),
        "failure auroc": resampled(r_auroc, unsure, right, n=n),
        "failure p": float(test.pvalue),
    }
