"""Cross-fitting: an index calibrated by its own items, for collections too small to hold data out.

The items are split into K folds, class by class. The items of fold f are queries against an index
of the other folds, with a posterior that was fitted to the other folds:

    hits of fold f  <-  items outside f,  posterior of the items outside f

so that no query was in the fit that assesses it, nor among the items that it finds, and neither was
a copy of it. All N queries together, of which copies count once, calibrate the index of all items,
whose posterior is that of all items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_fraction
from laplace_metric.calibration._group_column import check_enough, read_groups
from laplace_metric.calibration._learn import PARTS
from laplace_metric.calibration._votes import VOTES
from laplace_metric.errors import InputError, LabelError
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._columns import Column
from laplace_metric.models._fingerprints import in_fit, row_fingerprints
from laplace_metric.search._cross_hits import cross_labelled_hits, prior_of_classes
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._engine_settings import EngineKind
from laplace_metric.search._equal_vectors import equal_vectors, first_rows
from laplace_metric.search._fitted_queries import TOLERATED
from laplace_metric.search._folds import (
    check_classes_apart,
    check_folds,
    check_sizes,
    class_places,
    connected,
    folds_of_groups,
)
from laplace_metric.search._index import Index
from laplace_metric.search._near_copies import warn_of_near_copies
from laplace_metric.search._protocols import FittedEmbedder
from laplace_metric.search._rankings import AUTO, Predictive, PredictiveRanking
from laplace_metric.search._refit import RefittableEmbedder
from laplace_metric.search._seen_items import seen_at


def cross_index(
    embedder: RefittableEmbedder,
    inputs: Sequence[Any],
    labels: Column,
    ids: Any = None,
    *,
    folds: int = 5,
    n_queries: int | None = None,
    seed: Seed = 0,
    k: int = 10,
    depth: int = 50,
    portable: bool = False,
    open_set_fraction: float = 0.0,
    engine: str | EngineKind | Callable[..., Any] = "flat",
    rank_by: str | Predictive = AUTO,
    groups: Any = None,
    progress: bool = False,
) -> Index:
    """Return a calibrated index of all items, each of which is a query to an index of others.

    ``LaplaceEmbedder.cross_index`` calls it, and lists what is guaranteed.

    Parameters
    ----------
    embedder : RefittableEmbedder
        Model with a posterior that was fitted to all items, and the settings to fit others.
    inputs : sequence of batches
        Items that ``embedder`` was fitted to, in batches that its model takes.
    labels : Column [N]
        Class of each item.
    ids : [N] whole numbers or strings, or None
        Name of each item. None, the default: items are numbered from 0.
    folds : int
        Number of parts, from 2 to the number of items; the index of a fold has
        ``1 - 1 / folds`` of the items. Default: 5.
    n_queries : int or None
        Number of items that are queries, at least: as many folds are asked as hold them, out of
        ``folds`` or more. It saves time for many items. None, the default: all.
    seed : torch.Generator, int or None
        Generator or seed that deals each class out to the folds and splits the queries. Default: 0.
    k : int
        Number of neighbours to which the match probability is fitted. Default: 10.
    depth : int
        Number of neighbours that retrieval sets may choose from. Default: 50.
    portable : bool
        Leave out what only this index knows, as for ``Index.calibrate``. Default: False.
    open_set_fraction : float in [0, 1)
        Share of later queries that have no match, as for ``Index.calibrate``. Default: 0.
    engine : "flat" | "ivf" | "hnsw", ``search.Flat``, ``IVF``, ``HNSW``, or function
        Search engine, or a search of yours over all items, as for ``Index.searched_by``. Default:
        "flat".
    rank_by : str, or ``search.Predictive``
        Ranking of the items, as for ``LaplaceEmbedder.index``; a search of yours ranks by "mean".
        Default: "auto".
    groups : [N] numbers or strings, or None
        Group of each item, as for ``LaplaceEmbedder.cross_index``. None, the default: items are
        independent.
    progress : bool
        Show a progress bar. Default: False.

    Raises
    ------
    InputError
        For a number of folds that cannot be, or items that the posterior was not fitted to.
    LabelError
        For another number of inputs than of labels.
    """
    k, depth = check_count("k", k), check_count("depth", depth)
    check_fraction("open_set_fraction", open_set_fraction)
    n_folds, asked = check_count("folds", folds, least=2), None
    if n_queries is not None and check_count("n_queries", n_queries) < len(labels):
        n_folds = max(n_folds, len(labels) // n_queries)  # whose index is nearly the whole
        asked = -(-n_queries * n_folds // len(labels))
    check_folds(n_folds, labels)
    check_sizes(labels)
    seen = seen_at(embedder.model, embedder.fitted_.head, inputs, progress=progress)
    features = torch.cat([at_least_float32(batch.look().features) for batch in seen])
    if len(features) != len(labels.values):
        raise LabelError(
            f"inputs hold {len(features)} items for {len(labels.values)} labels: pass one label "
            "per item."
        )
    _check_fitted(embedder, features)
    group = None if groups is None else read_groups(groups, len(labels), "items")
    same = equal_vectors(features)
    one = first_rows(same)
    together = same if group is None else connected(group, same)
    if group is not None:
        check_enough(int(together.max()) + 1, f"the {len(same):,} items, whose copies join groups,")
    check_folds(n_folds, labels.take(one), "distinct items")
    check_sizes(labels.take(one), "distinct items")
    generator = as_generator(seed)
    assert generator is not None
    codes = class_places(labels)
    fold = folds_of_groups(codes, torch.from_numpy(together), n_folds, generator)
    if group is not None:
        check_classes_apart(labels, together)
    index = Index.build(
        Encoder.of(embedder),
        replace(
            Inputs.of_batches("inputs", [(batch, None) for batch in seen]), count=len(features)
        ),
        labels.values,
        ids,
        engine="flat" if callable(engine) else engine,
        rank_by="mean" if (callable(engine) or portable) and rank_by == AUTO else rank_by,
        progress=False,
    )
    if group is None:
        rows, places = torch.from_numpy(one), index.items.label_codes
        warn_of_near_copies(
            index.items.encoded.mean[rows.to(index.items.encoded.mean.device)],
            None if places is None else places[rows],
            "items",
            "Unless new queries have such near-copies among the items, too, guarantees and "
            "probabilities will not hold: pass groups=, the video or object of each, keep one of "
            "each, or calibrate with queries that have none (Guard(..., held_out=), or "
            "index.calibrate).",
        )
    if callable(engine):
        index = index.searched_by(engine)
    class_prior = None if portable else prior_of_classes(index)
    labelled = cross_labelled_hits(
        embedder,
        features,
        labels,
        fold,
        max(k, depth, VOTES),
        open_set_fraction=open_set_fraction,
        seed=generator,
        engine=index.engine if callable(engine) else engine,
        rank_by=_same_ranking(index),
        class_prior=class_prior,
        n_folds=asked,
    )
    queries = slice(None) if asked is None else (fold < asked).numpy()
    index.learn(
        replace(labelled, same=same[queries]),
        k,
        generator,
        portable=portable,
        own_items=True,
        cross_fit=PARTS,
        groups=None if group is None else group[queries],
    )
    return index


def _same_ranking(index: Index) -> str | Predictive:
    """Return the ranking that folds share with the whole, in the place of a choice of their own."""
    ranking = index.ranking
    if isinstance(ranking, PredictiveRanking):
        return Predictive(ranking.share, len(ranking.columns))
    return ranking.name


def _check_fitted(embedder: FittedEmbedder, features: Tensor) -> None:
    known = embedder.fitted_.fingerprints
    if known is None:
        return
    share = float(in_fit(known, row_fingerprints(features)).mean())
    if share < 1 - TOLERATED:
        raise InputError(
            f"{1 - share:.0%} of the items were not in the fit of the posterior: cross-fitting "
            "leaves folds out of a fit to these very items. Fit to them, or build an index of "
            "these items and calibrate it with queries that are held out."
        )
