"""Is the variance true? Predicted variances of distances against heads that were fitted again.

Each head starts at the trained one and is trained with the network's loss on a bootstrap sample of
the points that it was fitted to; the body stays. The variance of the squared distance of a pair
over these heads is beside the one that a posterior predicts for shared weights (``distance``), for
the posterior of the curvature and for noise without data of the same total size. A rotation of the
space moves no distance, so heads need no alignment.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.posterior.kernels import embedder_of
from benchmarks.posterior.problems import BATCH, LOSSES, NETWORKS, Trained, trained
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric.curvature._spectral_curvature import SpectralCurvature
from laplace_metric.heads._located import HeadActivations
from laplace_metric.laplace._predicted import distance_of

NAME = "posterior_refits"
HEADS, EPOCHS, PAIRS, SHOWN = 12, 6, 500, (2, 3, 5, 6)
Row = dict[str, Any]


def again(of: Trained, loss: Any, seed: int) -> nn.Linear:
    """Train the head on a bootstrap sample of its fit set."""
    torch.manual_seed(1_000 + seed)
    h, y = of.fit
    rows = torch.randint(len(h), (len(h),))
    head = nn.Linear(of.head.in_features, of.head.out_features)
    head.load_state_dict(of.head.state_dict())
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(rows)).split(BATCH):
            at = rows[part]
            optimizer.zero_grad()
            loss(head(h[at]), y[at]).backward()
            optimizer.step()
    return head


@torch.no_grad()
def squared(head: nn.Linear, a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of the directions of pairs."""
    x, y = (nn.functional.normalize(head(side), dim=-1) for side in (a, b))
    return (x - y).square().sum(1)


def compared(of: Trained, loss: Any) -> list[Row]:
    """Correlation of predicted and refitted variances, on each collection."""
    heads = [again(of, loss, seed) for seed in range(HEADS)]
    embedder = embedder_of(of)
    posterior = embedder.posterior_
    mean_variance = float(posterior.variance.mean())
    flat = torch.zeros_like(posterior.curvature.eigenvalues)
    noise = replace(
        posterior,
        curvature=SpectralCurvature(posterior.curvature.basis, flat, 0.0),
        prior_precision=1.0,
        temperature=mean_variance,
    )
    rows = []
    for collection in of.collections:
        h = collection.queries[0]
        a, b = h[:PAIRS], h[-PAIRS:]
        true = torch.stack([squared(head, a, b) for head in heads]).var(0)
        row: Row = {"collection": collection.name}
        for name, some in (("posterior", posterior), ("noise", noise)):
            fitted = replace(embedder.fitted_, posterior=some)
            with torch.no_grad():
                x, y = (HeadActivations(s, of.head(s), of.head(s)) for s in (a, b))
                predicted = distance_of(x, y, fitted, shared_weights=True).variance
            row[name] = float(spearmanr(predicted, true).statistic)
            row[f"{name}, ratio"] = float(predicted.median() / true.median())
        rows.append(row)
    return rows


def run(options: Namespace) -> None:
    """Train networks and heads, and write the record."""
    rows = []
    for place in tqdm(SHOWN, desc="Networks", disable=None):
        network = NETWORKS[place]
        loss = LOSSES[network.loss]()
        for row in compared(trained(network, 0, options.data), loss):
            rows.append({"network": network.name, "part": network.part, **row})
    print(write_record(NAME, {"heads": HEADS, "rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """Rank correlation with refitted heads, and the ratio of median variances."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    header = ["network", "collection", "posterior: rank correlation", "noise", "posterior: ratio"]
    lines = [
        [
            row["network"],
            row["collection"],
            f"{row['posterior']:.2f}",
            f"{row['noise']:.2f}",
            f"{row['posterior, ratio']:.2g}",
        ]
        for row in rows
    ]
    return markdown(header, lines)
