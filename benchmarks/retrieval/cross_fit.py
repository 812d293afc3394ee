"""Coverage after cross-fitting: ``python -m benchmarks retrieval --pieces cross-fit --splits 40``.

Small collections of a world in which new queries can be drawn: class centres and items are
Gaussian, and new queries come from the classes in the proportions of the items. Each collection is
cross-fitted, and its probabilities, sets, p-values and guarantees are compared with the truth on
``NEW`` new queries. ``--splits`` is the number of collections of each world. No setting of the
library was chosen on these seeds.

``LaplaceEmbedder.cross_index`` refuses the worlds whose row says so; they are measured here without
its check, to show why.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.retrieval.measure import K, summarised
from benchmarks.retrieval.rows import record_rows
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.evaluation._share_interval import share_interval
from laplace_metric.inputs._columns import Column
from laplace_metric.models import Precomputed
from laplace_metric.search import Index
from laplace_metric.search._cross_hits import cross_labelled_hits, prior_of_classes
from laplace_metric.search._folds import check_sizes, folds_of
from laplace_metric.search._label_sets import LabelSets

NEW, DEPTH, FOLDS = 500, 50, 5
DIMENSION = 24
ALPHAS = (0.05, 0.1, 0.2)
TARGETS = (0.8, 0.9)
FIRST_SEED = 1000


@dataclass(frozen=True)
class World:
    """Classes by their number of items, and the noise of an item about its class centre.

    Parameters
    ----------
    name : str
    sizes : dict of items a class to number of classes
    noise : float
        Standard deviation; that of the centres is 1.
    """

    name: str
    sizes: dict[int, int]
    noise: float

    def drawn(self, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Items [N, D], their labels [N], new queries [NEW, D] and theirs [NEW]."""
        generator = torch.Generator().manual_seed(FIRST_SEED + seed)
        items = torch.tensor([n for n, classes in self.sizes.items() for _ in range(classes)])
        y = torch.arange(len(items)).repeat_interleave(items)
        centres = torch.randn(len(items), DIMENSION, generator=generator)
        new_y = y[torch.randint(len(y), (NEW,), generator=generator)]
        x, new_x = (
            centres[of] + self.noise * torch.randn(len(of), DIMENSION, generator=generator)
            for of in (y, new_y)
        )
        return x, y, new_x, new_y


WORLDS = {
    world.name: world
    for world in (
        World("200 classes of 2", {2: 200}, 0.7),
        World("20 classes of 2", {2: 20}, 0.9),
        World("a quarter of the items in pairs", {2: 40, 6: 40}, 0.9),
        World("200 classes of 3", {3: 200}, 0.7),
        World("20 classes of 3", {3: 20}, 0.9),
        World("200 classes of 10", {10: 200}, 0.9),
        World("20 classes of 10", {10: 20}, 1.2),
    )
}


def cross_fitted(x: Tensor, y: Tensor, seed: int) -> Index:
    """As ``cross_index``, of any class sizes."""
    embedder = LaplaceEmbedder(Precomputed(x.shape[1]), head="append")
    embedder.fit([(x, y)], progress=False)
    generator = torch.Generator().manual_seed(seed)
    fold = folds_of(y, FOLDS, generator)
    index = embedder.index(x, y, progress=False)
    prior, labels = prior_of_classes(index), Column.of("labels", y)
    labelled = cross_labelled_hits(embedder, x, labels, fold, DEPTH, class_prior=prior)
    index.learn(labelled, K, generator)
    return index


def one_collection(world: World, seed: int) -> dict[str, float | None]:
    """Every number of one collection; None where a guarantee could not be given."""
    x, y, new_x, new_y = world.drawn(seed)
    index = cross_fitted(x, y, seed)
    calibration = index.calibration
    assert calibration is not None
    new = index.labelled_hits(new_x, new_y, DEPTH)
    judged, right = calibration.assess(new.hits), new.match[:, 0]
    assert judged.carrier is not None
    assert judged.label_probability is not None
    right_label = np.take_along_axis(new.match, judged.carrier[:, None], 1)
    near = judged.match_probability[:, 0]
    outcome: dict[str, float | None] = {
        "nearest is right": _mean(right),
        "match probability": _mean(near),
        "label is right": _mean(right_label),
        "label probability": _mean(judged.label_probability),
    }
    count = torch.bincount(y)[new_y].numpy()
    smallest = count == count.min()
    scores, classes = calibration.label_scores(new.hits), index.items.classes
    own = np.where(new.match, scores, -np.inf).max(1)
    assert classes is not None
    for alpha in ALPHAS:
        levels = calibration.held_out_labels().levels(alpha)
        sets = LabelSets.of(new.hits, classes, calibration, levels)
        covered = own >= levels.level[new_y.numpy()]
        outcome[f"label sets {alpha:g}: coverage"] = _mean(covered)
        if len(world.sizes) > 1:
            outcome[f"label sets {alpha:g}: coverage, smallest classes"] = _mean(covered[smallest])
        outcome[f"label sets {alpha:g}: size"] = _mean(sets.sizes.numpy())
        outcome[f"unknown {alpha:g}"] = _mean(judged.p_value <= alpha)
        try:
            members = calibration.members(judged.logit, alpha)
        except InputError:
            outcome[f"retrieval sets {alpha:g}: given"] = 0.0
            continue
        outcome[f"retrieval sets {alpha:g}: given"] = 1.0
        held = (members & new.match).any(1)
        outcome[f"retrieval sets {alpha:g}: coverage"] = _mean(held)
        if len(world.sizes) > 1:
            outcome[f"retrieval sets {alpha:g}: coverage, smallest classes"] = _mean(held[smallest])
        outcome[f"retrieval sets {alpha:g}: size"] = _mean(members.sum(1))
    for target in TARGETS:
        try:
            threshold = calibration.guarantee(precision=target, of="match")
        except InputError:
            outcome[f"precision {target:g}: given"] = 0.0
            continue
        accepted = (near >= threshold.value) & (judged.p_value > 0.05)
        outcome[f"precision {target:g}: given"] = 1.0
        outcome[f"precision {target:g}: answered"] = _mean(accepted)
        if bool(accepted.any()):
            obtained = _mean(right[accepted])
            outcome[f"precision {target:g}: obtained"] = obtained
            outcome[f"precision {target:g}: broken"] = float(obtained < target)
    return outcome


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean())


def measured(world: World, collections: int) -> dict[str, Any]:
    """Everything about one world; the share of broken guarantees with its exact 95 % interval."""
    rows = [one_collection(world, seed) for seed in range(collections)]
    summary = summarised(rows)
    for target in TARGETS:
        broken = [row.get(f"precision {target:g}: broken") for row in rows]
        given = len(broken) - broken.count(None)
        low, high = share_interval(broken.count(1.0), given)
        summary[f"precision {target:g}: broken, interval"] = [float(low), float(high)]
    facts = {"problem": world.name, "noise": world.noise, "collections": collections}
    return {**facts, "refused": _is_refused(world), **summary}


def _is_refused(world: World) -> bool:
    try:
        check_sizes(Column.of("labels", world.drawn(0)[1]))
    except InputError:
        return True
    return False


def run(options: Namespace) -> None:
    """World by world; ``--problems`` names some of them."""
    worlds = {name: lambda _, world=world: world for name, world in WORLDS.items()}
    record_rows(options, "cross_fit", lambda world: measured(world, options.splits), worlds)
