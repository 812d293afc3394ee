"""A sampler and a miner of pytorch-metric-learning in the training, and the posterior after it.

    python -m benchmarks posterior --pieces miners

A small convolutional network learns 964 characters of Omniglot by triplets: from random batches;
from batches of four drawings of 32 characters (`MPerClassSampler`); and from these with the
triplets that `MultiSimilarityMiner` picks. The sampler is the loader's, the miner that of
`train_embedder(..., miner=)`. Each network then searches drawings of new characters, by its mean,
by what enters its head, by noise in the head's weights and by their posterior. The posterior is of
all pairs; for the last network also of the miner's (`LaplaceEmbedder(pairs=miner)`).
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.datasets import load
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.records import folder_of, markdown, read_record, thousandths, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.search import Predictive
from laplace_metric.training import train_embedder

NAME, SEEDS, EPOCHS, BATCH, DRAWINGS = "miners", (0, 1, 2), 6, 128, 4
SIZE, BATCHES, FITTED, ITEMS, QUERIES = 64, 150, 6_000, 2_000, 1_000
NEW = 300
NOISE = 1e6
RANDOM, SAMPLED, MINED = "random batches", "sampler", "sampler and miner"
ALL, MINERS = "all", "the miner's"
RANKINGS: dict[str, Any] = {"mean": "mean", "noise": Predictive(prior=NOISE), "posterior": "auto"}
HEAD_INPUTS = "head inputs"
Labelled = tuple[Tensor, Tensor]
Row = dict[str, Any]


def images(split: str, data: Any) -> Labelled:
    """Drawings [N, 1, 28, 28] in [0, 1] of a split of Omniglot, and their characters."""
    found = load("omniglot", split, data)
    x, y = torch.as_tensor(found.images), torch.as_tensor(found.labels).long()
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    return x if x.ndim == 4 else x[:, None], y


def network() -> tuple[nn.Sequential, nn.Sequential]:
    """A body, and the model with its head."""
    body = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    return body, nn.Sequential(body, nn.Linear(576, SIZE))


def loader_of(x: Tensor, y: Tensor, batches: str, n: int) -> DataLoader[Any]:
    """Return a loader of n batches an epoch, with the sampler that was asked for."""
    pairs = TensorDataset(x, y)
    if batches == RANDOM:
        drawn = torch.utils.data.RandomSampler(pairs, num_samples=n * BATCH)
        return DataLoader(pairs, BATCH, sampler=drawn)
    few = MPerClassSampler(y, DRAWINGS, BATCH, length_before_new_iter=n * BATCH)
    return DataLoader(pairs, BATCH, sampler=few)


def first_right(embedder: LaplaceEmbedder, items: Labelled, queries: Labelled) -> Row:
    """Return the share of queries whose first item is right, by each ranking."""
    row: Row = {}
    for name, rank_by in RANKINGS.items():
        index = embedder.index(*items, rank_by=rank_by, progress=False)
        found = torch.as_tensor(index.search(queries[0], 1).labels)[:, 0]
        row[name] = float((found == queries[1]).double().mean())
    return row


def measured(seed: int, learnt: Labelled, new: Labelled, n_batches: int) -> list[Row]:
    """Train by each way of making batches, and search new characters."""
    rows: list[Row] = []
    order = torch.randperm(len(new[0]), generator=torch.Generator().manual_seed(seed))
    items, queries = (
        (new[0][chosen], new[1][chosen])
        for chosen in (order[:ITEMS], order[ITEMS : ITEMS + QUERIES])
    )
    some = (learnt[0][:FITTED], learnt[1][:FITTED])
    for batches in (RANDOM, SAMPLED, MINED):
        # samplers draw from numpy's global state, batches from torch's
        with own_randomness(torch.Generator().manual_seed(seed), torch.device("cpu")):
            body, model = network()
            train_embedder(
                model, loader_of(*learnt, batches, n_batches), TripletMarginLoss(margin=0.2),
                epochs=EPOCHS, miner=MultiSimilarityMiner() if batches == MINED else None,
            )  # fmt: skip
        model.eval()
        with torch.no_grad():
            h = [nn.functional.normalize(body(x), dim=1) for x, _ in (queries, items)]
        nearest = (h[0] @ h[1].mT).argmax(1)
        ways = {ALL: "all", **({MINERS: MultiSimilarityMiner()} if batches == MINED else {})}
        for name, pairs in ways.items():
            chosen = {} if name == ALL else {"pairs": pairs}
            # batches of few characters: a miner needs several drawings of each in a batch
            fit = [(x, y) for x, y in zip(*(v.split(500) for v in some), strict=True)]
            embedder = LaplaceEmbedder(model, **chosen).fit(fit, progress=False)
            rows.append({
                "seed": seed, "training": batches, "pairs of the posterior": name,
                HEAD_INPUTS: float((items[1][nearest] == queries[1]).double().mean()),
                **first_right(embedder, items, queries),
            })  # fmt: skip
    return rows


def run(options: Namespace) -> None:
    """Measure every seed, and write ``miners.json``."""
    x, y = images("train", options.data)
    new_x, new_y = images("test", options.data)
    few = new_y < NEW
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        rows = [
            row
            for seed in SEEDS
            for row in measured(seed, (x, y), (new_x[few], new_y[few]), BATCHES)
        ]
    print(write_record(NAME, {"rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """First item right on new characters, means over the seeds."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    lines = []
    for training, pairs in dict.fromkeys(
        (row["training"], row["pairs of the posterior"]) for row in rows
    ):
        own = [
            row
            for row in rows
            if (row["training"], row["pairs of the posterior"]) == (training, pairs)
        ]
        cells = [training, pairs]
        for key in ("mean", HEAD_INPUTS, "noise", "posterior"):
            number = mean_and_standard_error([row[key] for row in own])
            cells.append(f"{thousandths(number.mean)} ± {thousandths(number.standard_error)}")
        lines.append(cells)
    header = ["training", "pairs of the posterior", "mean", HEAD_INPUTS, "noise", "posterior"]
    return markdown(header, lines)
