"""Search by frozen encoders: what the curvature of a head that is the identity adds.

An EfficientNet of photographs, which no set here has trained, encodes images of four sets. Its
vectors, as they are or at length 1, are items and queries; the posterior is fitted to the items.
Rankings choose their share of the squared length by the labels of the items; "auto" chooses the
prior and the centre, too, and whether to leave the mean. Noise adds the same numbers again, at
another scale, and whitening is the prior at which the data speak alone.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.pretrained import EfficientNetLite0
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index, Predictive

NAME = "frozen"
SETS = ("kmnist", "mnist", "fashion-mnist", "cifar10")
N_ITEMS, N_QUERIES, SPLITS, NEIGHBOURS, BATCH = 2_000, 1_000, 3, 10, 100
SMALL = 300
NOISE, WHITENED = 1e6, 1e-4
RANKINGS: dict[str, Any] = {
    "mean": "mean",
    "noise": Predictive(prior=NOISE),
    "whitened": Predictive(prior=WHITENED),
    "auto": "auto",
}
LENGTHS = ("as they are", "length 1")
Row = dict[str, Any]


@torch.no_grad()
def features(name: str, n: int, data: Any) -> tuple[Tensor, Tensor]:
    """Features [n, 1280] of images of a set, drawn at random, and their labels."""
    images = load(name, "test", data)
    x, y = torch.as_tensor(images.images), torch.as_tensor(images.labels).long()
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:n]
    x = x[rows].float() / (255 if x.dtype == torch.uint8 else 1)
    x = (x if x.ndim == 4 else x[:, None]).expand(-1, 3, -1, -1)
    network = EfficientNetLite0()
    return torch.cat([network(part) for part in x.split(BATCH)]), y[rows]


def measured(index: Index, queries: Tensor, labels: Tensor) -> dict[str, float]:
    """First item right, and the most frequent label of ten neighbours right."""
    found = torch.as_tensor(index.search(queries, NEIGHBOURS).labels)
    vote = found.mode(1).values
    return {
        "first": float((found[:, 0] == labels).double().mean()),
        "label": float((vote == labels).double().mean()),
    }


def rows_of(name: str, length: str, x: Tensor, y: Tensor) -> list[Row]:
    """Every ranking of each split."""
    x = torch.nn.functional.normalize(x, dim=1) if length == LENGTHS[1] else x
    rows: list[Row] = []
    for seed in range(SPLITS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        n = 2 * len(x) // 3
        items, asked = order[:n], order[n:]
        embedder = LaplaceEmbedder.from_embeddings(x[items], y[items])
        for ranking, rank_by in RANKINGS.items():
            index = embedder.index(x[items], y[items], rank_by=rank_by, progress=False)
            chosen = str(index.ranking) if index.rank_by == "predictive" else "mean"
            row = {"set": name, "vectors": length, "seed": seed, "ranking": ranking}
            rows.append({**row, "chosen": chosen, **measured(index, x[asked], y[asked])})
    return rows


def run(options: Namespace) -> None:
    """Encode, search, and write the record."""
    n = SMALL if options.size == "smoke" else N_ITEMS + N_QUERIES
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in SETS:
            x, y = features(name, n, options.data)
            for length in LENGTHS:
                rows += rows_of(name, length, x, y)
    print(write_record(NAME, {"rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """First item right and label right by each ranking, means over the splits."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    lines = []
    for name in SETS:
        for length in LENGTHS:
            some = [row for row in rows if (row["set"], row["vectors"]) == (name, length)]
            cells = [name, length]
            for ranking in RANKINGS:
                of = [row for row in some if row["ranking"] == ranking]
                means = (sum(row[key] for row in of) / len(of) for key in ("first", "label"))
                cells.append(" ".join(f"{mean:.3f}" for mean in means))
            lines.append(cells)
    return markdown(["images", "vectors", *RANKINGS], lines)
