"""What the curvature adds to search: ``python -m benchmarks posterior --data DIR``.

Three seeds of every network of ``problems``, each searched by the five rows of ``kernels``: first
item right; label by the vote of ten neighbours; and how well the vote's share tells right labels
from wrong ones (AUROC). Draws of heads at the fitted temperature stand beside the mean. Differences
of rows are paired, over the collections of all seeds; their intervals are those of Student's t over
networks and seeds, since collections of one network are not independent.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.posterior.kernels import ONE_OBSERVATION, ROWS, embedder_of, joined, parts_of
from benchmarks.posterior.problems import NETWORKS, Collection, Network, Trained, trained
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.models._compared_rows import compared_rows

NAME = "posterior"
SHARES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
CHOSEN = (0.25, 0.5, 0.75, 0.9)
SEEDS, SMOKE, NEIGHBOURS, N_DRAWS = 3, 1, 10, 8
SAID = {
    "mean z": "embedding, as without this library",
    "h": "what enters the last layer",
    "h whitened": "the same, whitened within classes",
    "noise": "embedding and noise that no data shaped",
    "posterior": "embedding and posterior: ours",
}
"""What the first page calls the rows."""
PARTS, RIVALS = ("development", "confirmation"), ("noise", "h whitened")
MEASURES = ("first", "label", "auroc")
TRAINED_WEIGHTS = "trained weights"
PRIORS = {ONE_OBSERVATION: ONE_OBSERVATION, TRAINED_WEIGHTS: "posterior"}
"""Prior of the posterior -> the row that searches under it."""
Row = dict[str, Any]


@torch.no_grad()
def measured(network: Network, seed: int, of: Trained) -> list[Row]:
    """Every collection of one network."""
    embedder = embedder_of(of)
    parts, asked, posterior = parts_of(of, embedder), _under_priors(embedder), embedder.posterior_
    known = {prior: one(of.collections[0].queries[0]).uncertainty for prior, one in asked.items()}
    rows = []
    for collection in of.collections:
        row = _of_collection(of, collection, parts)
        drawn = _draws(of, embedder, collection)
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
                **drawn,
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


def _under_priors(embedder: LaplaceEmbedder) -> dict[str, LaplaceEmbedder]:
    """Return the embedder with its posterior under each prior."""
    prior = embedder.fitted_.predictive_prior
    assert prior is not None
    fits = {
        ONE_OBSERVATION: embedder.fitted_,
        TRAINED_WEIGHTS: embedder.fitted_.with_precision(prior),
    }
    model, settings = embedder.model, embedder.settings
    return {n: LaplaceEmbedder.from_fitted(model, settings, fit) for n, fit in fits.items()}


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
        best = max((at[s][2], -s) for s in CHOSEN)[1] * -1  # the smallest of equal ones
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
    found = labels[(_unit(queries) @ _unit(items).mT).topk(NEIGHBOURS, 1).indices]
    first = (found[:, 0] == truth).double()
    same = found[:, :, None] == found[:, None, :]
    votes = same.double().mean(2)
    share, at = votes.max(1)  # the nearest of the labels with most votes
    right = (found.gather(1, at[:, None])[:, 0] == truth).numpy()
    auroc = float(roc_auc_score(right, share)) if 0 < right.mean() < 1 else float("nan")
    return {"first": float(first.mean()), "label": float(right.mean()), "auroc": auroc}


def _draws(of: Trained, embedder: LaplaceEmbedder, collection: Collection) -> Row:
    """Recall of draws of heads, at the temperature of the fit and at a prior precision of 1."""
    (items, labels), (queries, truth) = collection.items, collection.queries
    head, posterior = embedder.fitted_.jacobian, embedder.posterior_
    former = posterior.with_precision(1.0).with_temperature(1.0)
    result: Row = {}
    for name, of_weights in (("draws", posterior), ("draws, prior 1", former)):
        weights = of_weights.sample(N_DRAWS, 0)
        drawn = zip(
            head.forward_with(queries, weights), head.forward_with(items, weights), strict=True
        )
        result[name] = float(np.mean([_measures(q, i, truth, labels)["first"] for q, i in drawn]))
    u = embedder(queries)
    result["uncertainty"] = float(u.uncertainty.mean())
    return result


def run(options: Namespace) -> None:
    """Train, measure and write the record."""
    smoke = options.size == "smoke"
    networks = NETWORKS[:1] if smoke else NETWORKS
    seeds = SMOKE if smoke else SEEDS
    todo = [(network, seed) for network in networks for seed in range(seeds)]
    rows: list[Row] = []
    for network, seed in tqdm(todo, desc="Networks", disable=None):
        rows += measured(network, seed, trained(network, seed, options.data))
    print(write_record(NAME, {"shares": SHARES, "rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def differences(rows: Sequence[Row], of: str, against: str, measure: str) -> tuple[float, float]:
    """Mean paired difference of two rows, and half of its 95 % interval."""
    gaps = [row["chosen"][of][measure] - row["chosen"][against][measure] for row in rows]
    return _over_networks(rows, gaps)


def _over_networks(rows: Sequence[Row], gaps: Sequence[float]) -> tuple[float, float]:
    """Mean over networks and seeds, and half of its 95 % interval."""
    by_network: dict[tuple[str, int], list[float]] = {}
    for row, gap in zip(rows, gaps, strict=True):
        by_network.setdefault((row["network"], row["seed"]), []).append(gap)
    means = np.array([np.nanmean(gaps) for gaps in by_network.values()])
    if len(means) < 2:
        return float(means.mean()), float("nan")
    half = student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return float(means.mean()), float(half)


def table(folder: Any = None) -> str:
    """Means of every row, and the posterior's difference to it, development and confirmation."""
    record = read_record(NAME) if folder is None else read_record(NAME, folder)
    header = ["part", "row", "first item right", "label right", "AUROC of the vote"]
    header += ["posterior ahead: first", "label", "AUROC"]
    lines = []
    for part in PARTS:
        rows = [row for row in record["rows"] if row["part"] == part]
        for name in ROWS if rows else ():
            means = [np.nanmean([row["chosen"][name][m] for row in rows]) for m in MEASURES]
            cells = [part, name, *(f"{x:.3f}" for x in means)]
            for measure in MEASURES:
                gap, half = differences(rows, "posterior", name, measure)
                cells.append("" if name == "posterior" else f"{gap:+.3f} ± {half:.3f}")
            lines.append(cells)
    return markdown(header, lines)


def first_page() -> str:
    """First item right through networks that nobody looked at before, by each row."""
    rows = [row for row in read_record(NAME)["rows"] if row["part"] == "confirmation"]
    lines = []
    for name, said in SAID.items():
        first, label = (
            np.nanmean([row["chosen"][name][m] for row in rows]) for m in ("first", "label")
        )
        gap, half = differences(rows, "posterior", name, "first")
        ahead = "" if name == "posterior" else f"{gap:+.3f} ± {half:.3f}"
        lines.append([said, f"{first:.3f}", f"{label:.3f}", ahead])
    return markdown(["ranked by", "first item right", "label right", "posterior ahead"], lines)


def priors_table() -> str:
    """Errors, foreign images and search under each prior, and their paired differences."""
    header = ["part", "prior", "errors", "foreign images", "first item right"]
    lines = []
    for part in PARTS:
        rows = [row for row in read_record(NAME)["rows"] if row["part"] == part]
        columns = []
        for measure in ("errors", "foreign", "first"):
            values = {
                prior: [
                    row["chosen"][name]["first"] if measure == "first" else row[measure].get(prior)
                    for row in rows
                ]
                for prior, name in PRIORS.items()
            }
            there = [place for place, value in enumerate(values[ONE_OBSERVATION]) if value]
            some = [rows[place] for place in there]
            one, other = ([values[prior][place] for place in there] for prior in PRIORS)
            gaps = [a - b for a, b in zip(one, other, strict=True)]
            gap, half = _over_networks(some, gaps)
            means = [f"{_over_networks(some, each)[0]:.3f}" for each in (one, other)]
            columns.append([*means, f"{gap:+.3f} ± {half:.3f}"])
        names = [*PRIORS, "difference"]
        lines += [[part, *line] for line in zip(names, *columns, strict=True)]
    return markdown(header, lines)


def at_equal_shares() -> str:
    """First item right of the posterior less that of noise and of whitened h, at each share."""
    record = read_record(NAME)
    header = ["share", *(f"{part}: against {name}" for part in PARTS for name in RIVALS)]
    lines = []
    for place, share in enumerate(record["shares"]):
        cells = [f"{share:g}"]
        for part in PARTS:
            some = [row for row in record["rows"] if row["part"] == part]
            for name in RIVALS:
                gaps = [
                    row["by_share"]["posterior"]["first"][place]
                    - row["by_share"][name]["first"][place]
                    for row in some
                ]
                gap, half = _over_networks(some, gaps)
                cells.append(f"{gap:+.3f} ± {half:.3f}")
        lines.append(cells)
    return markdown(header, lines)
