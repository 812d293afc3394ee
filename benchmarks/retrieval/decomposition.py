"""Are the numbers apart? ``python -m benchmarks retrieval --pieces decomposition``.

On frozen head inputs with a new posterior, three seeds each:

noise    labels of each class c are flipped to a partner class with probability rho_c, 0 to 1/2. The
         truth of a query of class c is the entropy of (1 - rho_c, rho_c); classes overlap by
         themselves, so a second row has only queries whose 20 nearest items were all of its class
         before the flips. Spearman with ambiguity, epistemic number and uncertainty.
data     a tenth of the points against all: the means of ambiguity, posterior variance, and far
         before it is standardised, divided by N (the variance that it is a multiple of).
people   Spearman with the entropy of the votes of CIFAR-10H.
within   Spearman of ambiguity and epistemic number among queries of known classes.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.engine.statistics import spearman
from benchmarks.records import folder_of, write_record
from benchmarks.retrieval.problems import PROBLEMS, Labelled, Problem, Source
from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration._votes import VOTES
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.search import SearchResult

NAMES, SEEDS, QUERIES = ("fashion-mnist", "cifar10"), 3, 2_500
NUMBERS = ("ambiguity", "ambiguity, no index", "epistemic", "uncertainty")
Row = dict[str, Any]
Numbers = dict[str, Tensor]


def inputs(problem: Problem) -> tuple[Labelled, Labelled]:
    """Head inputs and labels of the gallery, and of the first queries."""
    x, y = problem.pool[0][:QUERIES], problem.pool[1][:QUERIES]
    gallery, labels = problem.gallery
    of = problem.embedder.activations
    return (of(gallery).features, labels), (of(x).features, y)


def fitted(gallery: Labelled) -> LaplaceEmbedder:
    """The defaults, on an identity head."""
    return LaplaceEmbedder.from_embeddings(*gallery, distance="arccos")


def asked(gallery: Labelled, queries: Tensor) -> tuple[SearchResult, Numbers]:
    """Queries among the points of the fit, and each number of theirs."""
    embedder = fitted(gallery)
    result = embedder.index(*gallery, progress=False).search(queries, k=VOTES)
    assert result.ambiguity is not None
    numbers = result.ambiguity, embedder(queries).ambiguity, result.epistemic, result.uncertainty
    return result, dict(zip(NUMBERS, numbers, strict=True))


def flipped(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy labels [N], and the rate of each class."""
    g, n = torch.Generator().manual_seed(seed), int(labels.max()) + 1
    rate = torch.linspace(0, 0.5, n)[torch.randperm(n, generator=g)]
    shift = torch.randint(1, n, (1,), generator=g)
    partner = (torch.arange(n) + shift) % n
    flips = torch.rand(len(labels), generator=g) < rate[labels]
    return torch.where(flips, partner[labels], labels), rate.double()


def noise(gallery: Labelled, queries: Labelled, seed: int) -> list[Row]:
    """Spearman with the planted entropy: of all queries, and of those in clean places."""
    noisy, rate = flipped(gallery[1], seed)
    r = rate[queries[1]]
    truth = torch.special.entr(r) + torch.special.entr(1 - r)
    result, numbers = asked((gallery[0], noisy), queries[0])
    clean = (gallery[1][result.positions] == queries[1][:, None]).all(1)
    return [
        {"queries": name, "share": float(rows.double().mean()), **ranks(numbers, truth, rows)}
        for name, rows in (("all", torch.ones_like(clean)), ("no overlap", clean))
    ]


def ranks(numbers: Numbers, truth: Tensor, rows: Tensor) -> Row:
    """Spearman of each number with the truth."""
    return {name: spearman(number[rows], truth[rows]) for name, number in numbers.items()}


def means(gallery: Labelled, queries: Tensor) -> Row:
    """Ambiguity, variance and far over N of the same queries."""
    embedder, n = fitted(gallery), len(gallery[0])
    embedding = embedder(queries)
    near_far = embedder.fitted_.near_far
    assert near_far is not None
    result = embedder.index(*gallery, progress=False).search(queries, k=VOTES)
    assert result.ambiguity is not None
    return {
        "ambiguity": float(result.ambiguity.mean()),
        "ambiguity, no index": float(embedding.ambiguity.mean()),
        "posterior variance": float(embedding.variance.sum(1).mean()),
        "far / N": float(near_far.score(embedding.head_inputs)[1].mean()) / n,  # type: ignore[arg-type]
    }


def data(gallery: Labelled, queries: Tensor, seed: int) -> Row:
    """A tenth over all."""
    n = len(gallery[0])
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: n // 10]
    few, many = means((gallery[0][rows], gallery[1][rows]), queries), means(gallery, queries)
    return {name: few[name] / value for name, value in many.items()}


def people(gallery: Labelled, queries: Tensor, data_folder: str | None) -> Row:
    """Spearman with the entropy of what people said."""
    counts = load("cifar10", "test", data_folder, QUERIES).extras["cifar10h_counts"].double()
    entropy = torch.special.entr(counts / counts.sum(1, keepdim=True)).sum(1)
    numbers = asked(gallery, queries)[1]
    return ranks(numbers, entropy, torch.ones(len(entropy), dtype=torch.bool))


def run(options: Namespace) -> None:
    """Both problems; the record."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    content: Row = {"noise": [], "data": [], "within": []}
    for name in NAMES:
        gallery, queries = inputs(PROBLEMS[name](Source(options.data, options.cache)))
        for seed in range(SEEDS):
            rows = noise(gallery, queries, seed)
            content["noise"] += [{"problem": name, "seed": seed} | row for row in rows]
            row = data(gallery, queries[0], seed)
            content["data"].append({"problem": name, "seed": seed} | row)
        numbers = asked(gallery, queries[0])[1]
        epistemic = numbers["epistemic"]
        together = {a: spearman(numbers[a], epistemic) for a in NUMBERS[:2]}
        content["within"].append({"problem": name, **together})
        if name == "cifar10":
            content["people"] = people(gallery, queries[0], options.data)
        print(name, content, flush=True)
    write_record("decomposition", content, folder_of(options))
