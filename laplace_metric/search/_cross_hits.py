"""Search the items of each fold in an index of the other folds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric._utils.randomness import Seed
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.errors import FittedQueriesWarning
from laplace_metric.inputs._columns import Column
from laplace_metric.search._class_model import ClassPrior
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._engine import Engine
from laplace_metric.search._engine_settings import EngineKind
from laplace_metric.search._folds import class_places
from laplace_metric.search._foreign_engine import ForeignEngine
from laplace_metric.search._index import Index
from laplace_metric.search._rankings import Predictive
from laplace_metric.search._refit import Refits, RefittableEmbedder

ALL = 1 - 1e-9
"""A share of all, which is below 1."""
LEAST_A_CLASS = 10
"""Items a class, on average, for a class model: of fewer, a fifth less make another model."""


def cross_labelled_hits(
    embedder: RefittableEmbedder,
    features: Tensor,
    labels: Column,
    fold: Int[Tensor, " N"],
    depth: int,
    *,
    open_set_fraction: float = 0.0,
    seed: Seed = None,
    engine: str | EngineKind | Engine = "flat",
    rank_by: str | Predictive = "mean",
    class_prior: ClassPrior | None = None,
    n_folds: int | None = None,
) -> LabelledHits:
    """Search the items of each fold in an index of the others [N, depth], in their order.

    Parameters
    ----------
    embedder : RefittableEmbedder
        Model with a posterior, and the settings to fit others.
    features : Tensor [N, D]
        Inputs of the head, of all items.
    labels : Column [N]
        Class of each item.
    fold : Tensor [N]
        Number of the fold of each item, from 0.
    depth : int
        Number of neighbours; fewer if the smallest index has fewer items.
    open_set_fraction, seed
        Share of queries without a match, and the seed that draws them in each fold, as for
        ``Index.labelled_hits``.
    engine, rank_by
        Search engine and ranking, as for ``LaplaceEmbedder.index``. ``engine`` may also be an
        engine over all items, which then finds those outside a fold, too.
    class_prior : ClassPrior or None
        Prior and temperature of the class model, the same for each fold; None: no model.
    n_folds : int or None
        Number of folds whose items are queries; None: all.
    """
    n_folds = int(fold.max()) + 1 if n_folds is None else n_folds
    codes, classes = class_places(labels), Column(np.unique(labels.values))
    largest = int(torch.bincount(fold).max())
    depth = min(depth, len(fold) - largest)
    parts, rows, asked_for, drawn = [], [], 0, 0
    # predictive vectors keep some eigenvectors, and which depends on those without curvature
    refits = Refits.of(embedder, features, reduce=not isinstance(rank_by, Predictive))
    for f in range(n_folds):
        ours, others = (fold == f).nonzero().flatten(), (fold != f).nonzero().flatten()
        encoder = Encoder.of(refits.fit(others, codes[others]))
        index = Index.build(
            encoder.without_epistemic(),
            refits.features[others],
            labels.take(others.numpy()).values,
            engine="flat" if isinstance(engine, Engine) else engine,
            rank_by=rank_by,
            progress=False,
        )
        if isinstance(engine, Engine):
            index = index._with(_outside(engine, index, others))
        if class_prior is not None:
            index.learn_classes(*class_prior, refits.row_width)
        index.query_encoder = encoder
        asked_for += len(ours)  # folds are small: what one rounds away the next makes up for
        share = (round(open_set_fraction * asked_for) - drawn) / len(ours)
        drawn = round(open_set_fraction * asked_for)
        with warnings.catch_warnings():  # of copies and near-copies, which the whole has told
            warnings.simplefilter("ignore", FittedQueriesWarning)
            hits = index.labelled_hits(
                refits.features[ours],
                labels.take(ours.numpy()).values,
                depth,
                open_set_fraction=min(share, ALL),
                seed=seed,
                grouped=True,
            )
        parts.append(_recoded(hits, classes, others))
        rows.append(ours)
    return LabelledHits.concatenate(parts).take(torch.cat(rows).argsort().numpy())


def _outside(engine: Engine, index: Index, others: Int[Tensor, " n"]) -> Engine:
    """Find the items of an index, ``others`` among all N, by an engine over all."""
    place = torch.full((len(engine.vectors),), -1)
    place[others] = torch.arange(len(others))

    def find(queries: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
        # what it finds beyond k replaces the items of the fold, a fifth of them
        found = engine.search(torch.from_numpy(queries), min(2 * k, len(place))).cpu()
        there = place[found.clamp_min(0)].where(found >= 0, -1)
        nearest_first = (there < 0).int().argsort(dim=1, stable=True)
        return there.gather(1, nearest_first)[:, :k].numpy()

    return ForeignEngine(index.items.encoded.mean, index.items.ids, find)


def prior_of_classes(index: Index) -> ClassPrior | None:
    """Learn the class model of all items, and return what its folds need; None: too few a class."""
    classes = index.items.classes
    if classes is not None and len(index) >= LEAST_A_CLASS * len(classes):
        index.learn_classes()
    return None if index.class_model is None else index.class_model.prior


def _recoded(labelled: LabelledHits, classes: Column, rows: Tensor) -> LabelledHits:
    """Return hits with places among all ``classes``, and positions among all items."""
    hits, votes = labelled.hits, labelled.hits.voted
    assert labelled.classes is not None
    assert labelled.codes is not None
    place = classes.codes_of(labelled.classes)
    found = replace(
        hits,
        positions=_looked_up(rows.numpy(), hits.positions),
        votes=replace(votes, labels=_looked_up(place, votes.labels)),
    )
    codes = _looked_up(place, labelled.codes)
    return LabelledHits(found, labelled.match, labelled.known, codes, classes.values)


def _looked_up(table: npt.NDArray[Any], at: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the entries of a table at ``at``; -1 where ``at`` is -1."""
    return np.where(at < 0, -1, table[at.clip(min=0)])
