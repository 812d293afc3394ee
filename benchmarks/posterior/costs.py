"""Search by the posterior predictive among 200,000 items: time and memory beside the means.

Pixels of MNIST, FashionMNIST (and its mirror images) and the test images of KMNIST, averaged to 196
numbers, enter a linear head of 64 outputs that was trained on MNIST. Every index holds the same
items; the same queries are asked of each in turn, several times, and the fastest counts.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import torch
from pytorch_metric_learning import losses
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index, Predictive
from laplace_metric.training import train_embedder

NAME = "posterior_costs"
SETS = {"mnist": ("train", "test"), "fashion-mnist": ("train", "test"), "kmnist": ("test",)}
TRAINED_ON, MIRRORED = "mnist", "fashion-mnist"
N_ITEMS, N_QUERIES, N_FITTED, REPEATS = 200_000, 1_000, 3_000, 5
WIDTH, OUTPUTS, EPOCHS, BATCH = 196, 64, 2, 128
RANKINGS: dict[str, Any] = {
    "mean": "mean",
    "predictive, 16 numbers": Predictive(0.5, 16),
    "predictive, 64 numbers": Predictive(0.5, 64),
    "predictive, 95 % of its length": Predictive(0.5),
}
Row = dict[str, Any]


def images(name: str, data: Any) -> tuple[Tensor, Tensor]:
    """Pixels [N, 196] in [0, 1] and labels of a set."""
    parts = [load(name, split, data) for split in SETS[name]]
    pixels = torch.cat([torch.as_tensor(part.images) for part in parts])
    pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
    labels = torch.cat([torch.as_tensor(part.labels).long() for part in parts])
    if name == MIRRORED:
        pixels, labels = torch.cat([pixels, pixels.flip(-1)]), labels.repeat(2)
    return nn.functional.avg_pool2d(pixels, 2).flatten(1), labels


def embedder_of(x: Tensor, y: Tensor) -> LaplaceEmbedder:
    """A linear head, trained with triplets on one set, and its posterior."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, OUTPUTS))
    order = torch.randperm(len(x))[:20_000].split(BATCH)
    batches = [(x[rows], y[rows]) for rows in order]
    train_embedder(model, batches, losses.TripletMarginLoss(margin=0.2), epochs=EPOCHS)
    return LaplaceEmbedder(model.eval()).fit([(x[:N_FITTED], y[:N_FITTED])], progress=False)


def fastest(index: Index, queries: Tensor) -> float:
    """Return CPU seconds of the fastest of several searches."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        index.search(queries, 10)
        seconds.append(time.process_time() - start)
    return min(seconds)


def kept_bytes(index: Index) -> int:
    """Return bytes of an index's vectors and of what it keeps of its items."""
    tensors = [t for t in vars(index.items.encoded).values() if isinstance(t, Tensor)]
    if index.ranking.stored:
        tensors.append(index.engine.vectors)
    return sum(t.numel() * t.element_size() for t in tensors)


def run(options: Namespace) -> None:
    """Build every index, ask it, and write the record."""
    found = {}
    for place, name in enumerate(SETS):
        pixels, classes = images(name, options.data)
        found[name] = pixels, classes + 10 * place
    embedder = embedder_of(*found[TRAINED_ON])
    x, y = (torch.cat(parts) for parts in zip(*found.values(), strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    items, asked = order[:N_ITEMS], order[N_ITEMS : N_ITEMS + N_QUERIES]
    rows: list[Row] = []
    for name, ranking in RANKINGS.items():
        start = time.process_time()
        index = embedder.index(x[items], y[items], rank_by=ranking, progress=False)
        row: Row = {"ranking": name, "build": time.process_time() - start}
        row["numbers"] = index.ranking.item_vectors(index.items.encoded.take(slice(0, 1))).shape[1]
        row["bytes"] = kept_bytes(index) / N_ITEMS
        row["search"] = fastest(index, x[asked])
        first = index.search(x[asked], 1)
        row["first"] = float((torch.as_tensor(first.labels)[:, 0] == y[asked]).double().mean())
        rows.append(row)
    print(write_record(NAME, {"items": N_ITEMS, "queries": N_QUERIES, "rows": rows},
                       folder_of(options)).name)  # fmt: skip
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """Numbers of a vector, memory, time of building and of searching, nearest item right."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    header = ["ranked by", "numbers a vector", "bytes an item", "build, CPU s",
              "1,000 queries, CPU s", "nearest item right"]  # fmt: skip
    lines = [
        [row["ranking"], f"{row['numbers']}", f"{row['bytes']:,.0f}", f"{row['build']:.1f}",
         f"{row['search']:.2f}", f"{row['first']:.3f}"]
        for row in rows
    ]  # fmt: skip
    return markdown(header, lines)
