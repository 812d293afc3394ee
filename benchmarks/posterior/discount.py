"""Cosines that are discounted by their variance against variances of shared weights, in a search.

    python -m benchmarks posterior --pieces discount

A network learns half of the ten digits of scikit-learn, and searches images of the other half.
Probabilistic image-text searches divide a cosine by the root of one plus its variance, as if the
errors of two embeddings were independent (`cosine_discount`). In a Laplace posterior over one head
all embeddings share its weights. Next to both stand what enters the head, and a posterior that no
data shaped.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from baselines import cosine_discount
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.records import folder_of, markdown, read_record, thousandths, write_record
from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.search import Predictive
from laplace_metric.training import train_embedder

NAME, SEEDS, EPOCHS = "discount", (0, 1, 2), 10
TRAINED, WIDTH, SIZE, NOISE = 5, 128, 16, 1e6
BETAS = (1.0, 10.0, 100.0, 1000.0)
COSINE, HEAD_INPUTS, RANDOM, OURS = "cosine", "head inputs", "noise", "posterior"
DISCOUNT = "cosine, discounted, beta "
Row = dict[str, Any]


def right(scores: Tensor, items: Tensor, queries: Tensor) -> float:
    """Return the share of queries whose item with the largest score [Q, G] has their label.

    Examples
    --------
    >>> right(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([4, 5]), torch.tensor([5, 5]))
    0.5
    """
    return float((items[scores.argmax(1)] == queries).double().mean())


def measured(seed: int) -> Row:
    """Train a network on half of the digits, and search the others by every score."""
    train, test = datasets.load("digits"), datasets.load("digits", "test")
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    old = torch.isin(train.labels, order[:TRAINED])
    asked = ~torch.isin(test.labels, order[:TRAINED])
    x, y = train.pixels()[old], train.labels[old]
    items, item_labels = train.pixels()[~old], train.labels[~old]
    queries, labels = test.pixels()[asked], test.labels[asked]
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(WIDTH, SIZE))
    pairs = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(pairs, batch_size=64, shuffle=True)
    train_embedder(model, loader, ContrastiveLoss(), epochs=EPOCHS)
    model.eval()
    embedder = LaplaceEmbedder(model).fit([(x, y)], progress=False)
    first, second = embedder(queries), embedder(items)
    with torch.no_grad():
        h_q, h_g = (nn.functional.normalize(body(of), dim=1) for of in (queries, items))
    row = {
        COSINE: right(cosine_discount(first, second, beta=0), item_labels, labels),
        **{
            f"{DISCOUNT}{beta:g}": right(
                cosine_discount(first, second, beta=beta), item_labels, labels
            )
            for beta in BETAS
        },
        HEAD_INPUTS: right(h_q @ h_g.mT, item_labels, labels),
    }
    for name, rank_by in ((RANDOM, Predictive(prior=NOISE)), (OURS, "auto")):
        index = embedder.index(items, item_labels, rank_by=rank_by, progress=False)
        found = torch.as_tensor(index.search(queries, 1).labels)[:, 0]
        row[name] = float((found == labels).double().mean())
    return {"seed": seed, "items": len(items), "queries": len(queries), "first item right": row}


def run(options: Namespace) -> None:
    """Measure every seed, and write ``discount.json``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        rows = [measured(seed) for seed in SEEDS]
    print(write_record(NAME, {"rows": rows}, folder_of(options)).name)
    for row in rows:
        print(row)


def table() -> str:
    """Nearest item right by each score, and its difference to the cosine, seed by seed."""
    rows = [row["first item right"] for row in read_record(NAME)["rows"]]
    lines = []
    for name in rows[0]:
        own = mean_and_standard_error([row[name] for row in rows])
        ahead = mean_and_standard_error([row[name] - row[COSINE] for row in rows])
        cells = [f"{thousandths(x.mean)} ± {thousandths(x.standard_error)}" for x in (own, ahead)]
        lines.append([name, cells[0], "" if name == COSINE else cells[1]])
    return markdown(["ranked by", "nearest item right", "ahead of the cosine"], lines)
