"""Queries with their neighbours, from one search: what an answer looks like.

python -m benchmarks retrieval --pieces neighbours questions posterior-neighbours --data DIR
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.plots import Neighbours, headed, neighbours_plot, save_png
from benchmarks.records import FIGURES
from benchmarks.retrieval.problems import Source, fashion
from laplace_metric.search import Predictive, SearchResult

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "boot")  # fmt: skip
CALIBRATED, SHOWN, N_OOD, K = 2_000, slice(3_000, 3_005), 2, 6
"""Queries that calibrate, rows that are shown, OOD queries, neighbours."""
EACH = 1
"""Queries of each kind, where three kinds are shown."""
N_CHARACTERS, N_SHOWN, K_CHARACTERS = 2_000, 5, 4
"""Items, queries and neighbours of the characters."""


def run_questions(options: Namespace) -> None:
    """Three questions, three numbers: the clearest, most ambiguous and strangest of many queries.

    Of FashionMNIST those with the lowest ambiguity and epistemic number, and with the highest
    ambiguity where the epistemic number is below its median; of KMNIST those with the highest
    epistemic number. Of different classes each.
    """
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [CLASSES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [CLASSES[y] for y in pool_labels[:CALIBRATED]])
    rows = slice(CALIBRATED, 2 * CALIBRATED)
    queries, strange = pool[rows], problem.ood["kmnist"][:CALIBRATED]
    found, foreign = index.search(queries, K), index.search(strange, K)
    ambiguity, epistemic = found.ambiguity, found.epistemic
    assert ambiguity is not None
    familiar = epistemic < epistemic.median()
    clear = _of_different_labels(found, (-ambiguity - epistemic).masked_fill(~familiar, -torch.inf))
    unsure = _of_different_labels(found, ambiguity.masked_fill(~familiar, -torch.inf))
    odd = foreign.epistemic.argsort(descending=True)[:EACH]
    shown = torch.cat([queries[clear], queries[unsure], strange[odd]])
    classes = [CLASSES[pool_labels[rows][row]] for row in [*clear, *unsure]]
    truth = [*classes, *["a character"] * EACH]
    figure = index.search(shown, K).figure(shown, gallery, truth=truth)
    headed(figure, "A clear query, an ambiguous one, and one unlike anything known")
    save_png(figure, (options.output or FIGURES) / "three-questions.png")


def _of_different_labels(result: SearchResult, score: Tensor) -> list[int]:
    """The best scored queries, no two with one answer."""
    assert result.label is not None
    chosen: dict[str, int] = {}
    for row in score.argsort(descending=True).tolist():
        chosen.setdefault(result.label[row], row)
        if len(chosen) == EACH:
            break
    return list(chosen.values())


def run_neighbours(options: Namespace) -> None:
    """Five queries of the classes of the gallery with their neighbours, two of other images."""
    problem = fashion(Source(options.data, Path()))
    (gallery, labels), (pool, pool_labels) = problem.gallery, problem.pool
    index = problem.embedder.index(gallery, [CLASSES[y] for y in labels], progress=False)
    index.calibrate(pool[:CALIBRATED], [CLASSES[y] for y in pool_labels[:CALIBRATED]])
    queries = torch.cat([pool[SHOWN], problem.ood["kmnist"][:N_OOD]])
    truth = [*(CLASSES[y] for y in pool_labels[SHOWN]), *["a character"] * N_OOD]
    figure = index.search(queries, K).figure(queries, gallery, truth=truth)
    headed(figure, "Which neighbours match, and which queries are known?")
    save_png(figure, (options.output or FIGURES) / "retrieval-neighbours.png")


def run_posterior(options: Namespace) -> None:
    """Characters that the network never saw, searched by its mean embedding and by the posterior.

    KMNIST through the network of FashionMNIST; the queries are the first of a random order.
    """
    source = Source(options.data, Path())
    embedder = fashion(source).embedder
    x, y = source.pixels("kmnist", "test")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    items, asked = order[:N_CHARACTERS], order[N_CHARACTERS:][:N_SHOWN]
    rankings = []
    shown = ("by the mean embedding", "mean"), ("by the posterior", Predictive(layer=False))
    for title, rank_by in shown:
        index = embedder.index(x[items], y[items], rank_by=rank_by, progress=False)
        found = torch.as_tensor(index.search(x[asked], K_CHARACTERS).ids)
        right = y[items][found] == y[asked][:, None]
        images = [[x[items][item, 0].numpy() for item in row] for row in found]
        told = f"{title}: {int(right.sum())} of {right.numel()} right"
        rankings.append(Neighbours(told, images, right.tolist()))
    queries = [x[row, 0].numpy() for row in asked]
    words = {True: "the query's character", False: "another character"}
    note = (
        "Handwritten characters, through one network that was trained on clothes: an example.\n"
        f"The first {N_SHOWN} of a random order, among {N_CHARACTERS:,} items."
    )
    figure = headed(
        neighbours_plot(queries, rankings, words), "What does the posterior find?", note
    )
    save_png(figure, (options.output or FIGURES) / "posterior-neighbours.png")
