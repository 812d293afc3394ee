"""Rivals of 2024 to 2026 on the vectors of a frozen network, by their own searches and scores.

    python -m benchmarks posterior --pieces rivals

The networks and images of the `discount` record: a network learns half of the ten digits of
scikit-learn, and searches images of the other half. Every method reads the network's embeddings z,
or what enters its head, h. Three questions to each: is the first item of its search right, does its
score find the queries whose first item is wrong, and does it find images that are not of the learnt
digits. The failure predictor needs failures, of which the learnt digits have next to none: it is
fitted to the labelled gallery, whose labels choose the share of the posterior's numbers, too.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from baselines import GPLVM, AsymVLM, FailurePredictor, FlowDensity, Training
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.records import folder_of, markdown, read_record, thousandths, write_record
from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.search import Predictive
from laplace_metric.training import train_embedder

NAME, SEEDS, EPOCHS, BATCH = "rivals", (0, 1, 2), 10, 64
TRAINED, WIDTH, SIZE, NOISE = 5, 128, 16, 1e6
ASYMVLM, GROVE, FLOW, FAILURES = "asymvlm", "gplvm", "flow density", "failure predictor"
BOTH = "asymvlm, both sides"
"""The gallery passes through the head, too, which the paper does not do with images."""
COSINE, RANDOM, OURS = "cosine", "noise", "posterior"
VECTORS = {"z": "embedding", "h": "features"}
TRAININGS = {ASYMVLM: Training(epochs=20), FLOW: Training(epochs=50), FAILURES: Training(epochs=20)}
SOURCES = {
    ASYMVLM: ("Ju 2025", "trains a head"),
    BOTH: ("", "trains a head"),
    GROVE: ("GroVE, Venkataramanan 2025", "trains latent points"),
    FLOW: ("REPVLM, Ju 2026", "trains a flow"),
    FAILURES: ("ViLU, Lafon 2025", "trains a head on the gallery"),
    COSINE: ("", "reads"),
    RANDOM: ("", "reads"),
    OURS: ("Warburg 2023", "reads"),
}
FIRST, WRONG, UNSEEN, INVERTED = (
    "first item right", "wrong first item", "unseen digits", "inverted images",
)  # fmt: skip
Labelled = tuple[Tensor, Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A trained network with its body, and the images that are asked about."""

    model: nn.Module
    body: nn.Module
    learnt: Labelled
    items: Labelled
    queries: Labelled
    known: Tensor

    @property
    def inverted(self) -> Tensor:
        """The known images with black and white exchanged."""
        return self.known.max() - self.known


def problem(seed: int) -> Problem:
    """Train a network on half of the digits, as the `discount` record does."""
    train, test = datasets.load("digits"), datasets.load("digits", "test")
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    old = torch.isin(train.labels, order[:TRAINED])
    asked = ~torch.isin(test.labels, order[:TRAINED])
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(WIDTH, SIZE))
    x, y = train.pixels()[old], train.labels[old]
    pairs = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(pairs, batch_size=BATCH, shuffle=True)
    train_embedder(model, loader, ContrastiveLoss(), epochs=EPOCHS)
    return Problem(
        model.eval(), body, (x, y), (train.pixels()[~old], train.labels[~old]),
        (test.pixels()[asked], test.labels[asked]), test.pixels()[~asked],
    )  # fmt: skip


def auroc(low: Tensor, high: Tensor) -> float | None:
    """Return the probability that a score of ``high`` is above one of ``low``; None without any.

    Examples
    --------
    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))
    0.75
    """
    if not len(low) or not len(high):
        return None
    truth = torch.cat([torch.zeros(len(low)), torch.ones(len(high))])
    return float(roc_auc_score(truth, torch.cat([low, high]).double()))


def answered(
    of: Problem, first: Tensor, doubt: Tensor, strange: Callable[[Tensor], Tensor] | None
) -> dict[str, Any]:
    """Return the four numbers of a method.

    Parameters
    ----------
    of : Problem
    first : Tensor [Q]
        Label of each query's first item.
    doubt : Tensor [Q]
        Score of each query that is large where the first item may be wrong.
    strange : function or None
        Images -> score that is large for images that are not of the learnt digits. None: the
        method has none.
    """
    right = first == of.queries[1]
    row: dict[str, Any] = {
        FIRST: float(right.double().mean()),
        "wrong": int((~right).sum()),
        WRONG: auroc(doubt[right], doubt[~right]),
        UNSEEN: None,
        INVERTED: None,
    }
    if strange is not None:
        known = strange(of.known)
        row[UNSEEN] = auroc(known, strange(of.queries[0]))
        row[INVERTED] = auroc(known, strange(of.inverted))
    return row


def batches(x: Tensor, y: Tensor) -> list[Labelled]:
    """Return shuffled batches of all images."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return [(x[rows], y[rows]) for rows in order.split(BATCH)]


@torch.no_grad()
def directions(of: Problem, vectors: str) -> Callable[[Tensor], Tensor]:
    """Return what takes images to unit vectors z or h."""
    network = of.model if vectors == "z" else of.body
    return lambda images: nn.functional.normalize(network(images).detach(), dim=1)


def by_vectors(of: Problem, vectors: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the methods that read z or h, by name."""
    unit, on = directions(of, vectors), VECTORS[vectors]
    items, labels = unit(of.items[0]), of.items[1]
    learnt = unit(of.learnt[0])
    cosine, nearest = (unit(of.queries[0]) @ items.mT).max(1)
    found = labels[nearest]

    def made(kind: Any, name: str) -> Any:
        chosen = {"training": TRAININGS[name]} if name in TRAININGS else {}
        method = kind(of.model, on=on, **chosen)
        # another order and other weights for each network
        seeded = {**vars(method.training), "seed": seed}
        method.training = Training(**seeded)
        return method

    def score(method: Any) -> Callable[[Tensor], Tensor]:
        return lambda images: method(images).uncertainty

    def far_from_learnt(images: Tensor) -> Tensor:
        return 1 - (unit(images) @ learnt.mT).amax(1)

    yield COSINE, answered(of, found, 1 - cosine, far_from_learnt)
    train = batches(*of.learnt)
    power = made(AsymVLM, ASYMVLM).fit(train)
    first = labels[(power(of.queries[0]).mean @ items.mT).argmax(1)]
    yield ASYMVLM, answered(of, first, score(power)(of.queries[0]), score(power))
    means = [power(images).mean for images in (of.queries[0], of.items[0])]
    first = labels[(means[0] @ means[1].mT).argmax(1)]
    yield BOTH, answered(of, first, score(power)(of.queries[0]), score(power))
    grove = made(GPLVM, GROVE).fit(train)
    means = [grove(images).mean for images in (of.queries[0], of.items[0])]
    first = labels[(means[0] @ means[1].mT).argmax(1)]
    yield GROVE, answered(of, first, score(grove)(of.queries[0]), score(grove))
    flow = made(FlowDensity, FLOW).fit(train)
    yield FLOW, answered(of, found, score(flow)(of.queries[0]), score(flow))
    failures = made(FailurePredictor, FAILURES).fit(batches(*of.items))
    strange = score(failures.among(train))
    yield FAILURES, answered(of, found, score(failures)(of.queries[0]), strange)


def by_weights(of: Problem) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield searches by shared weights: noise in them, and their posterior."""
    embedder = LaplaceEmbedder(of.model).fit([of.learnt], progress=False)
    for name, rank_by in ((RANDOM, Predictive(prior=NOISE)), (OURS, "auto")):
        index = embedder.index(*of.items, rank_by=rank_by, progress=False)
        hits = index.search(of.queries[0], 1)
        first, distance = (torch.as_tensor(v)[:, 0] for v in (hits.labels, hits.distance))
        strange = (lambda images: embedder(images).epistemic) if name == OURS else None
        yield name, answered(of, first, distance, strange)


def measured(seed: int) -> list[Row]:
    """Measure every method on one network."""
    of = problem(seed)
    rows: list[Row] = []
    for vectors in VECTORS:
        for name, row in by_vectors(of, vectors, seed):
            rows.append({"seed": seed, "method": name, "vectors": vectors, **row})
    for name, row in by_weights(of):
        rows.append({"seed": seed, "method": name, "vectors": "h", **row})
    return rows


def run(options: Namespace) -> None:
    """Measure every seed, and write ``rivals.json``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        rows = [row for seed in SEEDS for row in measured(seed)]
    print(write_record(NAME, {"rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))


def table(folder: Any = None) -> str:
    """Means over the networks, with the number of wrong first items in all of them."""
    rows = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    lines = []
    for method, vectors in dict.fromkeys((row["method"], row["vectors"]) for row in rows):
        own = [row for row in rows if (row["method"], row["vectors"]) == (method, vectors)]
        source, fit = SOURCES[method]
        name = f"{method}, {vectors}" + (f" ({source})" if source else "")
        cells = [name, fit]
        for key in (FIRST, WRONG, UNSEEN, INVERTED):
            values = [row[key] for row in own if row[key] is not None]
            if not values:
                cells.append("")
                continue
            number = mean_and_standard_error(values)
            cells.append(f"{thousandths(number.mean)} ± {thousandths(number.standard_error)}")
        cells[3] += f" ({sum(row['wrong'] for row in own)})"
        lines.append(cells)
    header = ["search and score", "fit", "nearest item right", "wrong nearest item (of how many)",
              "unseen digits", "inverted images"]  # fmt: skip
    return markdown(header, lines)
