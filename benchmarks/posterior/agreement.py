"""Evidence of drawn heads, beside all that an index looks at.

Sixteen heads are drawn. Two columns are their agreement, the share whose nearest item has the label
of the answer, and the share of that label among the ten nearest of each. Half of the queries
calibrate the index, and fit a logistic regression of "the answer is right" on the label probability
and these columns; the others test which of the two ranks errors better.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from benchmarks.posterior.kernels import embedder_of
from benchmarks.posterior.problems import NETWORKS, Collection, Trained, trained
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder

NAME = "posterior_agreement"
DRAWS, DEPTH, HOTTER = 16, 10, (1, 4, 16)
Row = dict[str, Any]


def measured(of: Trained) -> list[Row]:
    """AUROC of right answers on each collection: of the probability, of draws, of both."""
    embedder = embedder_of(of)
    return [{"collection": c.name, **_of_collection(of, embedder, c)} for c in of.collections]


def _of_collection(of: Trained, embedder: LaplaceEmbedder, collection: Collection) -> Row:
    queries, truth = collection.queries
    half = len(queries) // 2
    index = embedder.index(*collection.items, progress=False)
    index.calibrate(queries[:half], truth[:half])
    found = index.search(queries, DEPTH)
    answer = torch.as_tensor(np.asarray(found.label).astype(int))
    probability = np.clip(np.asarray(found.label_probability, dtype=float), 1e-6, 1 - 1e-6)
    right = (answer == truth).numpy()
    row: Row = {"probability": float(roc_auc_score(right[half:], probability[half:]))}
    for factor in HOTTER:
        votes = _of_draws(of, embedder, collection, answer, factor).numpy()
        columns = np.column_stack([logit(probability), votes])
        both = LogisticRegression().fit(columns[:half], right[:half]).decision_function(columns)
        row[f"draws, {factor} T"] = float(roc_auc_score(right[half:], votes[half:, 1]))
        row[f"both, {factor} T"] = float(roc_auc_score(right[half:], both[half:]))
    return row


def _of_draws(
    of: Trained, embedder: LaplaceEmbedder, collection: Collection, answer: Tensor, factor: float
) -> Tensor:
    """Agreement and share of the label [Q, 2] of heads drawn at a multiple of the temperature."""
    (items, labels), queries = collection.items, collection.queries[0]
    posterior = embedder.posterior_
    weights = posterior.with_temperature(factor * posterior.temperature).sample(DRAWS, 0)
    head = embedder.fitted_.jacobian
    z, asked = (normalize(head.forward_with(h, weights), dim=-1) for h in (items, queries))
    shares = torch.zeros(len(queries), 2)
    for one, many in zip(asked, z, strict=True):
        same = labels[(one @ many.mT).topk(DEPTH).indices] == answer[:, None]
        shares += torch.stack([same[:, 0].float(), same.float().mean(1)], 1) / DRAWS
    return shares


def run(options: Namespace) -> None:
    """Train the networks, one seed each, and write the record."""
    rows = []
    for network in tqdm(NETWORKS, desc="Networks", disable=None):
        for row in measured(trained(network, 0, options.data)):
            rows.append({"network": network.name, "part": network.part, **row})
    print(write_record(NAME, {"draws": DRAWS, "rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """Mean AUROC over collections, and what the draws add to the probability."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    lines = []
    for part in ("development", "confirmation"):
        mine = [row for row in rows if row["part"] == part]
        for factor in HOTTER:
            gains = np.array([row[f"both, {factor} T"] - row["probability"] for row in mine])
            error = 1.96 * gains.std(ddof=1) / len(gains) ** 0.5
            means = (f"{np.mean([row[name] for row in mine]):.3f}" for name in
                     ("probability", f"draws, {factor} T", f"both, {factor} T"))  # fmt: skip
            lines.append([part, f"{factor} T", *means, f"{gains.mean():+.4f} ± {error:.4f}"])
    header = ["networks", "draws at", "label probability", "draws", "both", "gain"]
    return markdown(header, lines)
