"""What the defaults of a Laplace posterior are worth: structure, positivity, margin, prior, pairs.

    python -m benchmarks variants --pieces defaults --data DIR --cache DIR

On the networks that ``python -m benchmarks lam`` trained for FashionMNIST and CIFAR-10 (same cache,
three seeds): R-AUROC of the validation items, and AUROC of each OOD set against them, for every
combination below and five prior precisions. Writes ``results/defaults.json``.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.fitting import Fitting, best
from benchmarks.engine.statistics import mean_and_standard_error
from benchmarks.methods import BASE
from benchmarks.records import Store, markdown, read_record, thousandths, write_record
from benchmarks.sizes import SMALL, TUNING_SEED
from benchmarks.tasks import Workspace, build
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k

TASKS = ("fashion-mnist", "cifar10")
PRIORS = (0.01, 0.1, 1.0, 10.0, 100.0)
REFERENCE = 2_000
VARIANTS: dict[str, dict[str, Any]] = {
    "diagonal, clip": {"structure": "diag", "positivity": "clip"},
    "diagonal, absolute": {"structure": "diag", "positivity": "absolute"},
    "kronecker, clip": {"structure": "kron", "positivity": "clip"},
    "kronecker, absolute": {"structure": "kron", "positivity": "absolute"},
    "kronecker, clip, margin .5": {"structure": "kron", "positivity": "clip", "margin": 0.5},
    "kronecker, absolute, positives": {
        "structure": "kron", "positivity": "absolute", "hessian": "positives",
    },
    "kronecker, absolute, full": {
        "structure": "kron", "positivity": "absolute", "hessian": "full",
    },
}  # fmt: skip
MARGIN, MOST, PRIOR = 0.5, 5_000, 1.0
AS_PRINTED = {"structure": "diag", "positivity": "clip"}


class SomePairs:
    """A miner of at most ``MOST`` random pairs of a batch (LAM, G.1).

    ``with_loss``: of the positive pairs and the negative ones inside the margin alone.
    """

    def __init__(self, *, with_loss: bool) -> None:
        self.with_loss = with_loss
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Embeddings [B, Z] and labels [B] -> (anchors, positives, anchors, negatives)."""
        same = labels[:, None] == labels
        kept = torch.ones_like(same)
        if self.with_loss:
            z = torch.nn.functional.normalize(embeddings, dim=1)
            kept = same | (torch.cdist(z, z) <= MARGIN)
        found = kept.triu(1).nonzero()
        i, j = found[torch.randperm(len(found), generator=self.generator)[:MOST]].T
        positive = same[i, j]
        return i[positive], j[positive], i[~positive], j[~positive]


PAIRS: dict[str, dict[str, Any]] = {
    "all pairs": AS_PRINTED,
    "all pairs, margin .5": {**AS_PRINTED, "margin": MARGIN},
    "all pairs of a batch": {**AS_PRINTED, "pairs": "batch"},
    "5,000 pairs of a batch, margin .5": {
        **AS_PRINTED, "margin": MARGIN, "pairs": SomePairs(with_loss=False),
    },
    "5,000 pairs of a batch that have a loss": {
        **AS_PRINTED, "pairs": SomePairs(with_loss=True),
    },
}  # fmt: skip
"""Which pairs give the diagonal curvature of the LAM paper, clipped at zero; prior precision 1."""


def rows(
    fitting: Fitting,
    network: torch.nn.Module,
    variants: dict[str, dict[str, Any]],
    priors: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """One for each variant and prior."""
    for name, settings in variants.items():
        generator = torch.Generator().manual_seed(0)
        reference = REFERENCE if "margin" in settings else None
        fitted = LaplaceEmbedder(network, **settings).fit(
            fitting.loaders().gathered, progress=False, reference=reference, seed=generator
        )
        for prior in priors:
            embedder = with_prior(fitted, prior)
            row = {"task": fitting.task.name, "seed": fitting.seed, "variant": name, "prior": prior}
            negative = embedder.hessian_.negative_fraction
            yield {**row, "negative_fraction": negative, **measured(embedder, fitting)}


def with_prior(fitted: LaplaceEmbedder, prior: float) -> LaplaceEmbedder:
    """The same fit under another prior precision."""
    settings = replace(fitted.settings, prior_precision=prior)
    changed = fitted.fitted_.with_precision(prior, fitted.posterior_.n_effective)
    return LaplaceEmbedder.from_fitted(fitted.model, settings, changed)


def measured(embedder: LaplaceEmbedder, fitting: Fitting) -> dict[str, float]:
    """R-AUROC on validation items, and AUROC of OOD sets against them."""
    known, labels = embedder.embed(fitting.task.validation.loader(), progress=False)
    recall = recall_at_k(known.mean, labels, 1)
    kept = recall.counted
    found = {"r_auroc": r_auroc(known.uncertainty[kept], recall.per_query[kept])}
    for name, part in fitting.task.out.items():
        ood, _ = embedder.embed(part.loader(), progress=False)
        found[name] = auroc(known.uncertainty, ood.uncertainty)
    return found


def table() -> str:
    """R-AUROC / mean AUROC over the OOD sets, mean over tasks and seeds, prior by prior."""
    found = read_record("defaults")["rows"]
    lines = []
    for variant in VARIANTS:
        cells = [cell([r for r in found if (r["variant"], r["prior"]) == (variant, prior)])
                 for prior in PRIORS]  # fmt: skip
        lines.append([variant, *cells])
    return markdown(["R-AUROC / AUROC of OOD sets", *(f"prior {p:g}" for p in PRIORS)], lines)


def pairs_table() -> str:
    """Errors and OOD sets, mean ± standard error over the seeds, and what curvature was clipped."""
    found = read_record("defaults")["pairs"]
    sets = {task: [k for k in dict.fromkeys(k for r in found if r["task"] == task for k in r)
                   if k not in KNOWN] for task in TASKS}  # fmt: skip
    columns = [(task, k) for task in TASKS for k in ("r_auroc", *sets[task], "negative_fraction")]
    lines = []
    for variant in PAIRS:
        values = [
            [row[key] for row in found if (row["variant"], row["task"]) == (variant, task)]
            for task, key in columns
        ]
        summaries = [mean_and_standard_error(of) for of in values]
        lines.append([
            variant,
            *(f"{thousandths(s.mean)} ± {thousandths(s.standard_error)}" for s in summaries),
        ])  # fmt: skip
    words = {"r_auroc": "R-AUROC", "negative_fraction": "clipped"}
    header = [f"{task}: {words.get(key, f'AUROC {key}')}" for task, key in columns]
    return markdown(["curvature of", *header], lines)


KNOWN = ("task", "seed", "variant", "prior", "negative_fraction", "r_auroc")


def cell(of: list[dict[str, Any]]) -> str:
    """Two means."""
    errors = mean_and_standard_error([row["r_auroc"] for row in of]).mean
    ood = [v for row in of for key, v in row.items() if key not in KNOWN]
    return f"{thousandths(errors)} / {thousandths(mean_and_standard_error(ood).mean)}"


def run(options: Namespace) -> None:
    """Measure what is missing, and write the record."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    space = Workspace(options.data, options.cache, SMALL, progress=False)
    store = Store(space.cache / f"runs-{SMALL.name}")
    found: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for name in TASKS:
        settings = best(store.read("tuned", name, BASE, TUNING_SEED)["tried"])
        for seed in range(SMALL.seeds):
            fitting = Fitting(space, build(name, space, seed), seed, SMALL.rounds)
            network = fitting.trained_network(settings)
            found += rows(fitting, network, VARIANTS, PRIORS)
            pairs += rows(fitting, network, PAIRS, (PRIOR,))
            print(name, seed, flush=True)
    print(write_record("defaults", {"rows": found, "pairs": pairs}).name)
