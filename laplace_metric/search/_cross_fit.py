"""Cross-fitting: an index calibrated by its own items, for collections too small to hold data out.

The items are split into K folds, class by class. The items of fold f are queries against an index
of the other folds, with a posterior that was fitted to the other folds:

    hits of fold f  <-  items outside f,  posterior of the items outside f

so that no query was in the fit that assesses it, nor among the items that it finds, and neither was
a copy of it. All N queries together, of which copies count once, calibrate the index of all items,
whose posterior is that of all items.

Deal items out to folds, class by class, and refuse collections that are too small for it.

Search the items of each fold in an index of the other folds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_fraction
from laplace_metric.calibration._group_column import check_enough, read_groups
from laplace_metric.calibration._hits import LabelledHits
from laplace_metric.calibration.labels._votes import VOTES
from laplace_metric.calibration.probability._held_out import PARTS
from laplace_metric.errors import (
    DependentQueriesWarning,
    FittedQueriesWarning,
    InputError,
    LabelError,
    callers_line,
)
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._columns import Column
from laplace_metric.models._fingerprints import in_fit, row_fingerprints
from laplace_metric.search._encoder import Encoder
from laplace_metric.search._equal_vectors import equal_vectors, first_rows
from laplace_metric.search._index import Index
from laplace_metric.search._near_copies import warn_of_near_copies
from laplace_metric.search._protocols import FittedEmbedder
from laplace_metric.search._refit import Refits, RefittableEmbedder, seen_at
from laplace_metric.search._trained_items import TOLERATED
from laplace_metric.search.classes._class_model import ClassPrior
from laplace_metric.search.engines._engine import Engine, EngineKind, Flat, FlatEngine
from laplace_metric.search.engines._foreign_engine import ForeignEngine
from laplace_metric.search.rank._chosen_ranking import layers_asked
from laplace_metric.search.rank._rankings import AUTO, Predictive, PredictiveRanking, Ranking

MOST_IN_PAIRS = 0.25
"""Share of the items that may be in classes of two."""


def class_places(labels: Column) -> Int[Tensor, " N"]:
    return torch.from_numpy(np.unique(labels.values, return_inverse=True)[1])


def folds_of(codes: Int[Tensor, " N"], folds: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """Return a fold [N] for each item: the classes are dealt out one after the other.

    Folds have N / K items and n_c / K of each class, up to one.

    Examples
    --------
    >>> folds_of(torch.tensor([0, 0, 0, 1, 1, 1]), 3, torch.Generator().manual_seed(0)).tolist()
    [1, 2, 0, 1, 2, 0]
    """
    shuffled = torch.randperm(len(codes), generator=generator)
    order = shuffled[codes[shuffled].argsort(stable=True)]
    fold = torch.empty_like(codes)
    fold[order] = torch.arange(len(codes)) % folds
    return fold


def folds_of_groups(
    codes: Int[Tensor, " N"],
    group: Int[Tensor, " N"],
    folds: int,
    generator: torch.Generator,
) -> Int[Tensor, " N"]:
    """Return a fold [N] for each item, the same for all items of a group.

    Groups are dealt out class by class, of the class of their first item.

    Examples
    --------
    >>> codes, group = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 2, 2, 3])
    >>> folds_of_groups(codes, group, 2, torch.Generator().manual_seed(0)).tolist()
    [0, 0, 1, 1, 1, 0]
    """
    first = torch.from_numpy(np.unique(group.numpy(), return_index=True)[1])
    return folds_of(codes[first], folds, generator)[group]


def connected(group: npt.NDArray[np.intp], same: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return groups [N] of rows that are linked by their group or by being equal.

    Examples
    --------
    >>> connected(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
    [0, 0, 0, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = int(group.max()) + 1
    links = coo_array((np.ones(len(group)), (group, n + same)), shape=(n + len(same),) * 2)
    found: npt.NDArray[np.intp] = connected_components(links, directed=False)[1][group]
    return found.astype(np.intp)


def check_classes_apart(labels: Column, group: npt.NDArray[np.intp]) -> None:
    """Refuse groups that leave a class without an item outside of each of its groups.

    Raises
    ------
    InputError
        If every class has one group alone.

    Warns
    -----
    DependentQueriesWarning
        If some have: their items count as queries without a match.
    """
    codes = class_places(labels).numpy()
    pairs = np.unique(np.stack([codes, group]), axis=1)[0]
    classes, count = np.unique(pairs, return_counts=True)
    alone = classes[count == 1]
    if not len(alone):
        return
    names = ", ".join(map(repr, np.unique(labels.values)[alone[:3]].tolist()))
    names += ", ..." if len(alone) > 3 else ""
    if len(alone) == len(classes):
        raise InputError(
            f"groups: all {len(classes)} classes have one group each ({names}), so that no "
            "item has another of its class in another group to find. Pass smaller groups, or "
            "queries of other groups: Guard(..., held_out=)."
        )
    items = int(np.isin(codes, alone).sum())
    warnings.warn(
        f"groups: {len(alone)} of {len(classes)} classes have one group alone ({names}): "
        f"their {items:,} items find none of their class in another group, and count as queries "
        "without a match.",
        DependentQueriesWarning,
        stacklevel=callers_line(),
    )


def check_sizes(labels: Column, of: str = "items") -> None:
    """Refuse collections whose classes are too small to calibrate themselves.

    A query of a class of two finds one item of it in the index that calibrates, where a new query
    finds two; and every other class still has both: the evidence of the labels points away from the
    right class. From three items a class on the error is small (``benchmarks/retrieval``).

    Raises
    ------
    InputError
        If more than ``MOST_IN_PAIRS`` of the items that have another one of their class are in
        classes of two.
    """
    sizes = np.unique(labels.values, return_counts=True)[1]
    pairs, mates = 2 * int((sizes == 2).sum()), int(sizes[sizes > 1].sum())
    if pairs > MOST_IN_PAIRS * mates:
        small = pairs // 2
        raise InputError(
            f"labels: {small} of {len(sizes)} classes {'has' if small == 1 else 'have'} only two "
            f"{of}. To calibrate by its own items, a class needs three or more; classes of two "
            f"may hold {MOST_IN_PAIRS:.0%} of the items whose class has another, and hold {pairs} "
            f"of {mates}. Add items to these classes, or hold queries out: "
            "Guard(..., held_out=(queries, labels)), or index.calibrate(queries, labels)."
        )


def check_folds(folds: int, labels: Column, of: str = "items") -> None:
    largest = int(np.unique(labels.values, return_counts=True)[1].max(initial=0))
    if len(labels) > 2 and largest < 2:
        which = "" if of == "items" else f"of {of} "
        raise InputError(
            f"all {len(labels)} labels {which}differ, so that no item has another of its class to "
            "find: are these ids or row numbers? Pass the class of each item."
        )
    if folds > len(labels) or largest < 2:
        raise InputError(
            f"{len(labels)} {of}, {largest} at most of one class, are too few for folds={folds}: "
            "each fold needs an item, each item another of its class. Add items, or hold some out."
        )


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
    if (callable(engine) or portable) and rank_by == AUTO:
        rank_by = "mean"
    layers = layers_asked(rank_by, len(labels))
    seen = seen_at(embedder.model, embedder.fitted_.head, inputs, layers=layers, progress=progress)
    features = joined_rows([at_least_float32(batch.look().features) for batch in seen])
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
    generator = as_generator(0 if seed is None else seed)
    assert generator is not None
    codes = class_places(labels)
    fold = folds_of_groups(codes, torch.from_numpy(together), n_folds, generator)
    if group is not None:
        check_classes_apart(labels, together)
    encoder = Encoder.of(embedder)
    index = Index.build(
        encoder,
        replace(
            Inputs.of_batches("inputs", [(batch, None) for batch in seen]), count=len(features)
        ),
        labels.values,
        ids,
        engine="flat" if callable(engine) else engine,
        rank_by=rank_by,
        progress=False,
    )
    if group is None:
        distinct, places = index.items.encoded.mean, index.items.label_codes
        if len(one) < len(distinct):  # else these are all, which need no copy
            rows = torch.from_numpy(one)
            distinct = distinct[rows.to(distinct.device)]
            places = None if places is None else places[rows]
        warn_of_near_copies(
            distinct,
            places,
            "items",
            "Unless new queries have such near-copies among the items, too, guarantees and "
            "probabilities will not hold: pass groups=, the video or object of each, keep one of "
            "each, or calibrate with queries that have none (Guard(..., held_out=), or "
            "index.calibrate).",
        )
        del distinct
    if callable(engine):
        index = index.searched_by(engine)
    class_prior = None if portable else prior_of_classes(index)
    # two products again take less than the memory of the rows beside each fold
    means_stay = _are_searched(index)
    index._keep_rows(*_no_rows(index, means_stay))
    labelled = cross_labelled_hits(
        embedder,
        features,
        labels,
        fold,
        max(k, depth, VOTES),
        earlier=_earlier(index.ranking, seen),
        open_set_fraction=open_set_fraction,
        seed=generator,
        engine=index.engine if callable(engine) else engine,
        rank_by=_same_ranking(index),
        class_prior=class_prior,
        n_folds=asked,
    )
    index._keep_rows(*_rows_again(index, encoder, seen, means_stay))
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


def joined_rows(parts: Sequence[Tensor]) -> Float[Tensor, "N D"]:
    """Return the rows of all parts: a view where these follow one another in memory.

    Examples
    --------
    >>> x = torch.arange(6.0).view(3, 2)
    >>> joined_rows(x.split(2)).data_ptr() == x.data_ptr()
    True
    """
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != end:
            return torch.cat(list(parts))
        end += part.nbytes
    n, shared = sum(map(len, parts)), first.untyped_storage().data_ptr()
    if any(part.untyped_storage().data_ptr() != shared for part in parts):
        return torch.cat(list(parts))
    width = first.shape[1]
    return first.detach().as_strided((n, width), (width, 1))


def _are_searched(index: Index) -> bool:
    """Return whether the engine holds the means themselves, and keeps them through the folds."""
    engine = index.engine
    return not isinstance(engine, FlatEngine) and engine.vectors is index.items.encoded.mean


def _no_rows(index: Index, means_stay: bool) -> tuple[Tensor, Tensor]:
    """Return NaN in the shapes of means and head inputs, of one number each."""
    held = index.items.encoded.mean, index.items.encoded.basis_inputs
    mean, inputs = (x.new_full((1, 1), torch.nan).expand(x.shape) for x in held)
    return held[0] if means_stay else mean, inputs


def _rows_again(
    index: Index, encoder: Encoder, seen: Sequence[SeenInputs], means_stay: bool
) -> tuple[Float[Tensor, "N Z"], Float[Tensor, "N A"]]:
    """Return the means and head inputs of an index, from the batches in which it read them."""
    held = index.items.encoded.mean, index.items.encoded.basis_inputs
    mean, inputs = (x.new_empty(x.shape) for x in held)
    start = 0
    for batch in seen:
        part = slice(start, start := start + len(batch))
        read = encoder.rows_of(capture(encoder.model, encoder.head, batch))
        inputs[part] = read[1]
        if not means_stay:
            mean[part] = read[0]
    return held[0] if means_stay else mean, inputs


def _earlier(ranking: Ranking, seen: Sequence[SeenInputs]) -> dict[str, Tensor]:
    """Return the rows [N, E] that entered the layer of a ranking, by its name."""
    if not isinstance(ranking, PredictiveRanking) or ranking.layer is None:
        return {}
    name = ranking.layer.name
    return {name: torch.cat([batch.look().earlier[name] for batch in seen])}


def _same_ranking(index: Index) -> str | Predictive:
    """Return the ranking that folds share with the whole, in the place of a choice of their own."""
    ranking = index.ranking
    if isinstance(ranking, PredictiveRanking):
        return ranking.settings
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
    earlier: Mapping[str, Tensor] | None = None,
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
    earlier : mapping of name to Tensor [N, E], or None
        Rows that entered earlier layers. None, the default: there are none.
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
            refits.seen(others, encoder.head, earlier),
            labels.take(others.numpy()).values,
            engine=_of_fold(engine),
            rank_by=rank_by,
            progress=False,
        )
        if isinstance(engine, Engine):
            index = index._with(_outside(engine, index, others))
        if class_prior is not None:
            index.learn_classes(*class_prior, refits.row_width)
        ranking = index.ranking
        layer = ranking.layer if isinstance(ranking, PredictiveRanking) else None
        index.query_encoder = encoder.with_layer(layer)
        asked_for += len(ours)  # folds are small: what one rounds away the next makes up for
        share = (round(open_set_fraction * asked_for) - drawn) / len(ours)
        drawn = round(open_set_fraction * asked_for)
        with warnings.catch_warnings():  # of copies and near-copies, which the whole has told
            warnings.simplefilter("ignore", FittedQueriesWarning)
            hits = index.labelled_hits(
                refits.seen(ours, encoder.head, earlier),
                labels.take(ours.numpy()).values,
                depth,
                open_set_fraction=min(share, ALL),
                seed=seed,
                grouped=True,
            )
        parts.append(_recoded(hits, classes, others))
        rows.append(ours)
    return LabelledHits.concatenate(parts).take(torch.cat(rows).argsort().numpy())


def _of_fold(engine: str | EngineKind | Engine) -> str | EngineKind:
    """Return the engine of one fold, which is asked once: an exact one makes no copy to search."""
    if isinstance(engine, Engine) or engine in ("flat", Flat()):
        return Flat(faiss=False)
    return engine


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
    return replace(labelled, hits=found, codes=codes, classes=classes.values)


def _looked_up(table: npt.NDArray[Any], at: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the entries of a table at ``at``; -1 where ``at`` is -1."""
    return np.where(at < 0, -1, table[at.clip(min=0)])
