"""Class imbalance, the negative share of the curvature, and what each ``positivity`` ranks.

``python -m benchmarks.costs.imbalance [DATA]``: one small network a case, trained on so many images
of the first classes of FashionMNIST. A row: the share; AUROC of wrong nearest neighbours, and of
MNIST against the test images of those classes, by the uncertainty with "absolute" and with "clip".
"""

from __future__ import annotations

import sys
import warnings

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.datasets import load
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.training import train_embedder

CASES = {
    "balanced": [600] * 10,
    "Zipf": [1000 // rank for rank in range(1, 11)],
    "90/10": [900, 100],
    "99/1": [1000, 10],
    "one class 90 %, nine share 10 %": [1000] + [12] * 9,
}
N_QUERIES = 1_500


def trained(x: Tensor, y: Tensor) -> nn.Module:
    """784-128-64-16, three epochs."""
    torch.manual_seed(0)
    layers = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16)
    model = nn.Sequential(nn.Flatten(), *layers)
    for _ in range(3):
        batches = [(x[part], y[part]) for part in torch.randperm(len(x)).split(128)]
        train_embedder(model, batches, ContrastiveLoss(neg_margin=0.5), epochs=1, progress=False)
    return model


def scores(
    embedder: LaplaceEmbedder, x: Tensor, y: Tensor, q: Tensor, qy: Tensor, ood: Tensor
) -> tuple[float, float]:
    """AUROC of wrong nearest neighbours, and of other images."""
    queries, others = embedder(q), embedder(ood).uncertainty
    wrong = y[torch.cdist(queries.mean, embedder(x).mean).argmin(1)] != qy
    both = torch.cat([queries.uncertainty, others])
    is_ood = torch.arange(len(both)) >= len(q)
    return roc_auc_score(wrong, queries.uncertainty), roc_auc_score(is_ood, both)


def main(data: str | None) -> None:
    """Print one row a case."""
    fit, test = load("fashion-mnist", "train", data, 12_000), load("fashion-mnist", "test", data)
    ood = load("mnist", "test", data, N_QUERIES).pixels(slice(None))
    print("| classes | negative share | wrong: absolute / clip | MNIST: absolute / clip |")
    for name, counts in CASES.items():
        members = [(fit.labels == c).nonzero()[:n, 0] for c, n in enumerate(counts)]
        index = torch.cat(members)
        x, y = fit.pixels(slice(None))[index], fit.labels[index]
        known = (test.labels[:N_QUERIES] < len(counts)).nonzero()[:, 0]
        q, qy = test.pixels(slice(N_QUERIES))[known], test.labels[known]
        model, values = trained(x, y), []
        for positivity in ("absolute", "clip"):
            embedder = LaplaceEmbedder(model, positivity=positivity).fit([(x, y)], progress=False)
            values.append(scores(embedder, x, y, q, qy, ood))
        share = embedder.hessian_.negative_fraction
        wrong, others = (" / ".join(f"{v:.3f}" for v in pair) for pair in zip(*values, strict=True))
        print(f"| {name} | {share:.3f} | {wrong} | {others} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    main(sys.argv[1] if len(sys.argv) > 1 else None)
