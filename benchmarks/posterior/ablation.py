"""What the curvature adds to search: ``python -m benchmarks posterior --data DIR``.

Three seeds of every network of ``problems``, each searched by the rows of ``kernels``: first item
right; label by the vote of ten neighbours; and how well the vote's share tells right labels from
wrong ones (AUROC). "drawn z" is a head that was drawn at the fitted temperature, in place of the
trained one. "auto" is the default of an index, whose prior, centre and share the items' labels
choose. Only what enters the head is at hand here, so that it reads no earlier layer. How
``uncertainty`` tells wrong nearest items and foreign images stands beside it, under both priors.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.posterior.kernels import embedder_of, joined, parts_of, under_priors
from benchmarks.posterior.problems import NETWORKS, Collection, Network, Trained, trained
from benchmarks.posterior.tables import ABLATION, ablation_table
from benchmarks.records import folder_of, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.models._compared_rows import compared_rows

SHARES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
CHOSEN = (0.25, 0.5, 0.75, 0.9)
SEEDS, SMOKE, NEIGHBOURS, N_DRAWS = 3, 1, 10, 8
MEASURES = ("first", "label", "auroc")
Row = dict[str, Any]


@torch.no_grad()
def measured(network: Network, seed: int, of: Trained) -> list[Row]:
    """Every collection of one network."""
    embedder = embedder_of(of)
    parts, asked, posterior = parts_of(of, embedder), under_priors(embedder), embedder.posterior_
    known = {prior: one(of.collections[0].queries[0]).uncertainty for prior, one in asked.items()}
    rows = []
    for collection in of.collections:
        row = _of_collection(of, collection, parts)
        row["chosen"]["drawn z"] = _drawn(of, embedder, collection)
        row["chosen"]["auto"] = _by_default(embedder, collection)
        doubts = {prior: one(collection.queries[0]).uncertainty for prior, one in asked.items()}
        right = _nearest_is_right(of, collection)
        rows.append(
            {
                "network": network.name,
                "part": network.part,
                "seed": seed,
                "collection": collection.name,
                "temperature": posterior.temperature,
                "prior_precision": posterior.prior_precision,
                "errors": {prior: _above(u[~right], u[right]) for prior, u in doubts.items()},
                "foreign": {
                    prior: _above(u, known[prior])
                    for prior, u in doubts.items()
                    if collection is not of.collections[0]
                },
                **row,
            }
        )
    return rows


def _nearest_is_right(of: Trained, collection: Collection) -> Tensor:
    """Return of each query whether its nearest item, by the mean embedding, is of its class."""
    (items, labels), (queries, truth) = collection.items, collection.queries
    nearest = (_unit(of.head(queries)) @ _unit(of.head(items)).mT).argmax(1)
    return labels[nearest] == truth


def _above(larger: Tensor, smaller: Tensor) -> float | None:
    """Return the chance that one of ``larger`` is above one of ``smaller``; None without either."""
    if not len(larger) or not len(smaller):
        return None
    of_larger = np.repeat([1, 0], [len(larger), len(smaller)])
    return float(roc_auc_score(of_larger, torch.cat([larger, smaller]).double().numpy()))


def _of_collection(of: Trained, collection: Collection, parts: Any) -> Row:
    (items, labels), (queries, truth) = collection.items, collection.queries
    z_items, z_queries = of.head(items), of.head(queries)
    compared = compared_rows(labels)
    chosen = {
        "mean z": _measures(z_queries, z_items, truth, labels),
        "h": _measures(queries, items, truth, labels),
    }
    by_share: dict[str, dict[str, list[float]]] = {}
    for name, part in parts.items():
        own_items, own_queries = part(items), part(queries)
        squares = (_mean_square(z_items), _mean_square(own_items))
        at = {}
        for share in SHARES:
            asked = joined(z_queries, own_queries, share, squares)
            stored = joined(z_items, own_items, share, squares)
            at[share] = (asked, stored, _alone(stored[compared], labels[compared]))
        found = [_measures(*at[s][:2], truth, labels) for s in SHARES]
        by_share[name] = {m: [one[m] for one in found] for m in MEASURES}
        best = max(CHOSEN, key=lambda share: (at[share][2], -share))  # the smallest of equal ones
        chosen[name] = {**_measures(*at[best][:2], truth, labels), "share": best}
    return {"chosen": chosen, "by_share": by_share}


def _mean_square(x: Tensor) -> float:
    return float(x.square().sum(1).mean())


def _unit(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1)


def _alone(vectors: Tensor, labels: Tensor) -> float:
    near = (_unit(vectors) @ _unit(vectors).mT).fill_diagonal_(-2)
    return float((labels[near.argmax(1)] == labels).double().mean())


def _measures(queries: Tensor, items: Tensor, truth: Tensor, labels: Tensor) -> dict[str, float]:
    return _of_found(labels[(_unit(queries) @ _unit(items).mT).topk(NEIGHBOURS, 1).indices], truth)


def _of_found(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the measures of the labels [Q, 10] of the nearest items."""
    first = (found[:, 0] == truth).double()
    same = found[:, :, None] == found[:, None, :]
    votes = same.double().mean(2)
    share, at = votes.max(1)  # the nearest of the labels with most votes
    right = (found.gather(1, at[:, None])[:, 0] == truth).numpy()
    auroc = float(roc_auc_score(right, share)) if 0 < right.mean() < 1 else float("nan")
    return {"first": float(first.mean()), "label": float(right.mean()), "auroc": auroc}


def _by_default(embedder: LaplaceEmbedder, collection: Collection) -> Row:
    """Measures of the index as it is built by default, and what it ranks by."""
    (items, labels), (queries, truth) = collection.items, collection.queries
    index = embedder.index(items, labels, progress=False)
    found = index.search(queries, NEIGHBOURS).labels
    chosen = str(index.ranking) if index.rank_by == "predictive" else "mean"
    return {**_of_found(torch.as_tensor(found), truth), "by": chosen}


def _drawn(of: Trained, embedder: LaplaceEmbedder, collection: Collection) -> Row:
    """Measures of one drawn head, which embeds queries and items: means over some of them."""
    (items, labels), (queries, truth) = collection.items, collection.queries
    head, weights = embedder.fitted_.jacobian, embedder.posterior_.sample(N_DRAWS, 0)
    found = [
        _measures(q, i, truth, labels)
        for q, i in zip(
            head.forward_with(queries, weights), head.forward_with(items, weights), strict=True
        )
    ]
    return {measure: float(np.mean([one[measure] for one in found])) for measure in MEASURES}


def run(options: Namespace) -> None:
    """Train, measure and write the record."""
    smoke = options.size == "smoke"
    networks = NETWORKS[:1] if smoke else NETWORKS
    seeds = SMOKE if smoke else SEEDS
    todo = [(network, seed) for network in networks for seed in range(seeds)]
    rows: list[Row] = []
    for network, seed in tqdm(todo, desc="Networks", disable=None):
        rows += measured(network, seed, trained(network, seed, options.data, options.cache))
    print(write_record(ABLATION, {"shares": SHARES, "rows": rows}, folder_of(options)).name)
    print(ablation_table(folder_of(options)))
