"""Cross-fitting: an index calibrated by its own items, for collections too small to hold data out.

The items are split into K folds, class by class. The items of fold f are queries against an index
of the other folds, with a posterior that was fitted to the other folds:

    hits of fold f  <-  items outside f,  posterior of the items outside f

so that no query was in the fit that assesses it, nor among the items that it finds. All N queries
together calibrate the index of all items, whose posterior is that of all items.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric._utils.progress import tqdm
from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count
from laplace_metric.calibration._hits import VOTES, LabelledHits
from laplace_metric.calibration._learn import PARTS
from laplace_metric.errors import (
    FittedQueriesWarning,
    InputError,
    LabelError,
    LaplaceMetricWarning,
    callers_line,
)
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.laplace import Fitted, Settings
from laplace_metric.laplace._fit import fit_posterior
from laplace_metric.laplace._fit_options import FitOptions
from laplace_metric.models._calling import device_of, to_device
from laplace_metric.models._rows import rows_before
from laplace_metric.models._store import Fingerprints, row_fingerprints
from laplace_metric.models._trained import input_fingerprints, trained_on
from laplace_metric.search._columns import Column, joined_labels
from laplace_metric.search._encoding import BATCH, Encoder, FittedEmbedder, batches
from laplace_metric.search._engine import Engine
from laplace_metric.search._engine_settings import EngineKind
from laplace_metric.search._foreign_engine import ForeignEngine
from laplace_metric.search._index import Index
from laplace_metric.search._labelled import TOLERATED, in_fit, n_rows
from laplace_metric.search._near_copies import warn_of_near_copies

HEAD = "head"
ALL = 1 - 1e-9
"""A share of all, which is below 1."""


LEAST_A_CLASS = 10
"""Items a class, on average, for a class model: of fewer, a fifth less make another model."""
MOST_IN_PAIRS = 0.25
"""Share of the items that may be in classes of two."""


class RefittableEmbedder(FittedEmbedder, Protocol):
    """With settings by which another posterior can be fitted."""

    @property
    def settings(self) -> Settings:
        """Settings of a fit."""


@dataclass(frozen=True)
class HeadEmbedder:
    """A model with a posterior over its head, and the settings to fit another one."""

    model: nn.Module
    fitted_: Fitted
    settings: Settings


class _Directions(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


def read_items(inputs: Any, labels: Any) -> tuple[list[tuple[Any, Tensor]], Column]:
    """Batches of inputs with a whole number [n] for each label; and the labels [N] themselves.

    Raises
    ------
    LabelError
        Without labels.
    InputError
        For inputs or labels that cannot be read, or another number of labels than of items.
    """
    pairs = list(batches("inputs", inputs))
    sizes = [n_rows(batch) if own is None else len(own) for batch, own in pairs]
    if labels is None:
        labels = joined_labels([own for _, own in pairs if own is not None])
    if labels is None:
        raise LabelError("items have no labels: pass labels=, or a loader that yields them.")
    column = Column.of_labels(labels, sum(sizes))
    codes = _codes(column).split(sizes)
    return [(batch, part) for (batch, _), part in zip(pairs, codes, strict=True)], column


def _codes(labels: Column) -> Int[Tensor, " N"]:
    return torch.from_numpy(np.unique(labels.values, return_inverse=True)[1])


def folds_of(codes: Int[Tensor, " N"], folds: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """A fold [N] for each item: every class is dealt out, one class going on after the other.

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


def cross_labelled_hits(
    embedder: RefittableEmbedder,
    features: Tensor,
    labels: Column,
    fold: Int[Tensor, " N"],
    depth: int,
    *,
    open_set_fraction: float = 0.0,
    generator: Seed = None,
    engine: str | EngineKind | Engine = "flat",
    rank_by: str = "mean",
    class_precision: float | None = None,
    n_folds: int | None = None,
) -> LabelledHits:
    """Search the items of each fold in an index of the others [N, depth], in their order.

    Parameters
    ----------
    features : Tensor [N, D]
        What entered the head.
    depth : int
        At most; fewer if the smallest index has fewer items.
    open_set_fraction, generator
        As for ``Index.labelled_hits``, of each fold.
    engine, rank_by
        As for ``LaplaceEmbedder.index``; or an engine over all items, which then finds those
        outside a fold, too.
    class_precision : float or None
        Of the prior of the class model, so that each fold has that of the whole; None: no model.
    n_folds : int or None
        Folds that are asked; None: all.
    """
    n_folds = int(fold.max()) + 1 if n_folds is None else n_folds
    codes, classes = _codes(labels), Column(np.unique(labels.values))
    largest = int(torch.bincount(fold).max())
    depth = min(depth, len(fold) - largest)
    parts, rows, asked_for, drawn = [], [], 0, 0
    for f in range(n_folds):
        ours, others = (fold == f).nonzero().flatten(), (fold != f).nonzero().flatten()
        encoder = Encoder.of(_fitted_to(embedder, features[others], codes[others]))
        index = Index.build(
            encoder.without_epistemic(),
            features[others],
            labels.take(others.numpy()).values,
            engine="flat" if isinstance(engine, Engine) else engine,
            rank_by=rank_by,
            progress=False,
        )
        if isinstance(engine, Engine):
            index = index._with(_outside(engine, index, others))
        if class_precision is not None:
            index.learn_classes(class_precision)
        index.query_encoder = encoder
        asked_for += len(ours)  # folds are small: what one rounds away the next makes up for
        share = (round(open_set_fraction * asked_for) - drawn) / len(ours)
        drawn = round(open_set_fraction * asked_for)
        with warnings.catch_warnings():  # of copies, which the whole has told
            warnings.simplefilter("ignore", FittedQueriesWarning)
            hits = index.labelled_hits(
                features[ours],
                labels.take(ours.numpy()).values,
                depth,
                open_set_fraction=min(share, ALL),
                generator=generator,
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


def precision_of_classes(index: Index) -> float | None:
    """Learn the class model of all items, and return what its folds need; None: too few a class."""
    classes = index.items.classes
    if classes is not None and len(index) >= LEAST_A_CLASS * len(classes):
        index.learn_classes()
    return None if index.class_model is None else float(index.class_model.precision)


def _fitted_to(embedder: RefittableEmbedder, features: Tensor, codes: Tensor) -> HeadEmbedder:
    head = embedder.fitted_.head
    model = _head_alone(head)
    pairs = list(zip(features.split(BATCH), codes.split(BATCH), strict=True))
    settings, options = embedder.settings, FitOptions(progress=False)
    with warnings.catch_warnings():  # the fit to all items has told them
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        fitted = fit_posterior(model, HEAD, pairs, settings, options)
    return HeadEmbedder(model, fitted, settings)


def _head_alone(head: LocatedHead) -> nn.Module:
    """h -> what the model makes of it."""
    parts = [(HEAD, head.module)]
    parts += [("directions", _Directions())] if head.normalized else []
    return nn.Sequential(OrderedDict(parts)).eval()


def _recoded(labelled: LabelledHits, classes: Column, rows: Tensor) -> LabelledHits:
    """With places among all ``classes``, and positions among all items."""
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
    """-1 where ``at`` is."""
    return np.where(at < 0, -1, table[at.clip(min=0)])


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
    rank_by: str = "mean",
    progress: bool = True,
) -> Index:
    """See ``LaplaceEmbedder.cross_index``; ``inputs`` are batches that ``embedder`` was fitted to.

    Raises
    ------
    InputError
        For a number of folds that cannot be, or items that the posterior was not fitted to.
    LabelError
        For another number of inputs than of labels.
    """
    k, depth = check_count("k", k), check_count("depth", depth)
    n_folds, asked = check_count("folds", folds, least=2), None
    if n_queries is not None and check_count("n_queries", n_queries) < len(labels):
        n_folds, asked = max(2, len(labels) // n_queries), 1
    _check_folds(n_folds, labels)
    check_sizes(labels)
    seen = seen_at(embedder.model, embedder.fitted_.head, inputs, progress=progress)
    features = torch.cat([at_least_float32(batch.look().features) for batch in seen])
    if len(features) != len(labels.values):
        raise LabelError(
            f"inputs hold {len(features)} items for {len(labels.values)} labels: pass one label "
            "per item."
        )
    _check_fitted(embedder, features)
    _warn_of_copies(features)
    generator = as_generator(seed)
    assert generator is not None
    fold = folds_of(_codes(labels), n_folds, generator)
    pairs = [(batch, None) for batch in seen]
    index = Index.build(
        Encoder.of(embedder),
        pairs,
        labels.values,
        ids,
        engine="flat" if callable(engine) else engine,
        rank_by=rank_by,
        progress=False,
    )
    warn_of_near_copies(
        index.items.encoded.mean,
        index.items.label_codes,
        "items",
        "Unless new queries have such near-copies among the items, too, guarantees and "
        "probabilities will not hold: keep one of each, or calibrate with queries that have none "
        "(Guard(..., held_out=), or index.calibrate).",
    )
    if callable(engine):
        index = index.searched_by(engine)
    precision = None if portable else precision_of_classes(index)
    labelled = cross_labelled_hits(
        embedder,
        features,
        labels,
        fold,
        max(k, depth, VOTES),
        open_set_fraction=open_set_fraction,
        generator=generator,
        engine=index.engine if callable(engine) else engine,
        rank_by=rank_by,
        class_precision=precision,
        n_folds=asked,
    )
    index.learn(labelled, k, generator, portable=portable, own_items=True, cross_fit=PARTS)
    return index


def seen_at(
    model: nn.Module,
    head: LocatedHead | nn.Module | str | None,
    inputs: Sequence[Any],
    *,
    progress: bool,
) -> list[SeenInputs]:
    """Run the model once over batches of inputs and return what it gives at a head.

    Parameters
    ----------
    head : LocatedHead, or what ``locate_head`` takes
        The head, or how it is found in the first batch.
    """
    device, seen = device_of(model), list[SeenInputs]()
    start = 0
    for batch in tqdm(inputs, desc="Embedding", disable=not progress):
        there = to_device(batch, device)
        with rows_before(start):
            if not isinstance(head, LocatedHead):
                head, activations = locate_head(model, there, head)
            else:
                activations = capture(model, head, there)
        start += len(activations.features)
        seen.append(SeenInputs(head, len(activations.features), partial(_itself, activations)))
    return seen


def _itself(activations: HeadActivations) -> HeadActivations:
    return activations


def check_sizes(labels: Column) -> None:
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
        raise InputError(
            f"labels: {pairs // 2} classes have two items, {pairs} of the {mates} items whose "
            f"class has another: cross-fitting needs three, for all but {MOST_IN_PAIRS:.0%} of "
            "these items. Add items, or hold one of each class out: Guard(..., held_out=), or "
            "index.calibrate(held_out, held_out_labels)."
        )


def _check_folds(folds: int, labels: Column) -> None:
    largest = int(np.unique(labels.values, return_counts=True)[1].max(initial=0))
    if len(labels) > 2 and largest < 2:
        raise InputError(
            f"all {len(labels)} labels differ, so that no item has another of its class to find: "
            "are these ids or row numbers? Pass the class of each item."
        )
    if folds > len(labels) or largest < 2:
        raise InputError(
            f"{len(labels)} items, {largest} at most of one class, are too few for folds={folds}: "
            "each fold needs an item, each item another of its class. Add items, or hold some out."
        )


def _warn_of_copies(features: Tensor) -> None:
    """Warn if more than ``TOLERATED`` of the rows [N, D] are copies of others."""
    share = 1 - len(np.unique(row_fingerprints(features))) / len(features)
    if share > TOLERATED:
        warnings.warn(
            f"{share:.0%} of the items are copies of others. Copies find each other as no new "
            "query does, so that probabilities and guarantees will not hold: keep one of each.",
            FittedQueriesWarning,
            stacklevel=callers_line(),
        )


def training_inputs(embedder: FittedEmbedder) -> Fingerprints | None:
    """Return what is known of the training of a model: by this process, or saved with the fit."""
    fitted: Fitted | None = getattr(embedder, "_fitted", None)
    saved = None if fitted is None else fitted.trained_on
    return trained_on(embedder.model) if saved is None else saved


def share_trained_on(embedder: FittedEmbedder, inputs: Sequence[Any]) -> float:
    """Return the share of inputs, in batches, that the model is known to have been trained on."""
    known = training_inputs(embedder)
    if known is None:
        return 0.0
    rows = np.concatenate([input_fingerprints(batch) for batch in inputs])
    return float(in_fit(known, rows).mean()) if len(rows) else 0.0


def check_untrained(embedder: FittedEmbedder, inputs: Sequence[Any]) -> None:
    """Refuse items, in batches, that this package has trained the model on.

    Raises
    ------
    InputError
        If they are more than ``TOLERATED``.
    """
    share = share_trained_on(embedder, inputs)
    if share > TOLERATED:
        raise InputError(
            f"the model was trained on {share:.0%} of the items (train_embedder and OnlineLaplace "
            "note what they train on), which it embeds better than anything new, so that they "
            "cannot calibrate it: hold queries out that it was not trained on, "
            "Guard(..., held_out=(queries, labels)), or index.calibrate(queries, labels)."
        )


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
