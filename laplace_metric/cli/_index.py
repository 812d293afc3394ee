"""``laplace-metric index``: build an index, and calibrate it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laplace_metric import io as files
from laplace_metric.cli._fitted_queries import without_fitted
from laplace_metric.cli._gallery import CALIBRATE, Origin
from laplace_metric.cli._item_groups import Groups, groups_of_items
from laplace_metric.cli._loaded_posterior import LoadedPosterior, load_posterior
from laplace_metric.cli._model_recipe import ModelRecipe, read_options_of
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._records import split_rows
from laplace_metric.cli._reporter import Reporter, reporter_of
from laplace_metric.cli._source import Source
from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column
from laplace_metric.search import Index
from laplace_metric.search._cross_fit import check_sizes
from laplace_metric.search._evaluate import PRECISIONS, guaranteed_rule

WAYS = ("calibrate", "holdout", "cross_fit")
"""Options that say what calibrates."""
FOLDS, FEW, SMALL = 5, 100, 5_000
"""Parts of a collection that calibrates itself unasked; items with another of their class that it
needs, and items at most."""


@dataclass(frozen=True)
class IndexPlan:
    """Parts of the data: items to index, and held-out ones or folds of the items that calibrate.

    Groups are those of what calibrates, by the ids of items; None: each is independent.
    """

    source: Source
    items: Source
    held: Source
    holdout: float | None
    seed: int
    folds: int | None
    groups: Groups | None = None

    def groups_of(self, calibrating: Source) -> list[str] | None:
        """Return the group of each item that calibrates."""
        return None if self.groups is None else [self.groups[name] for name in calibrating.ids]


def index(options: Namespace) -> None:
    """Build, calibrate if there is something to calibrate with, save."""
    reporter, output = reporter_of(options, options.output), options.output
    _check_ways(options)
    require_data(options)
    posterior = load_posterior(options.posterior, options, reporter)
    plan = _planned(posterior, options, reporter)
    built = _built(plan, posterior, options, reporter)
    read_options = read_options_of(options)
    read_options.pop("labels", None)  # a file, which only an array needs
    origin = Origin(
        data=str(options.data.resolve()),
        fingerprint=plan.source.fingerprint,
        holdout=plan.holdout,
        seed=plan.seed,
        calibrated_with=None if options.calibrate is None else plan.held.fingerprint,
        read_options=read_options,
        embedder=built.encoder.identity,
    )
    parts = {"posterior": posterior.embedder._part(), "index": built._part()}
    parts |= {"recipe": posterior.recipe.read_as(plan.source).part(), "gallery": origin.part()}
    files.write(output, parts)
    _tell(built, len(plan.items if plan.folds else plan.held), output, reporter)


def _check_ways(options: Namespace) -> None:
    """Refuse two ways to calibrate, and a number of folds that cannot be."""
    chosen = [f"--{way.replace('_', '-')}" for way in WAYS if getattr(options, way) is not None]
    if options.cross_fit == 1:
        raise InputError("--cross-fit 1: give 0 for none, or 2 parts or more.")
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)}: give one of them.")
    if options.one_answer and (options.group_column is None or options.calibrate is None):
        raise InputError(
            "--one-answer counts the rows of a group of --calibrate TABLE as one query: give "
            "--calibrate TABLE and --group-column NAME, too."
        )
    by_chance = options.holdout is not None or options.cross_fit == 0
    if options.group_column is not None and options.calibrate is None and by_chance:
        raise _shared_groups(options.group_column)
    if options.cross_fit and options.compact:
        raise InputError(
            "--cross-fit is for small collections, --compact for large ones: give one."
        )


def _shared_groups(column: str) -> InputError:
    return InputError(
        f"--group-column {column}: a random part that is held out shares its groups with the "
        "items. Give --calibrate TABLE, of other groups, or --cross-fit."
    )


def _planned(posterior: LoadedPosterior, options: Namespace, reporter: Reporter) -> IndexPlan:
    """Choose what is indexed, and what calibrates it."""
    recipe, folds = posterior.recipe, options.cross_fit or None
    source = posterior.source(options.data, options, reporter)
    holdout, seed = _split(options, recipe, source, reporter)
    if folds is not None and holdout is not None:
        raise InputError(
            f"--cross-fit: the fit kept {holdout:g} of {options.data} apart, which calibrates. "
            "Leave --cross-fit out, or fit without --holdout."
        )
    rows, held_rows, _ = split_rows(len(source), holdout, seed)
    items, held = source.take(rows), source.take(held_rows)
    own = options.data, source
    if options.calibrate is not None:
        held = posterior.source(options.calibrate, options, reporter)
        own = options.calibrate, held
        if held.fingerprint == source.fingerprint:
            raise InputError(
                f"--calibrate {options.calibrate} holds the items of the index themselves, which "
                "would find themselves. Give other data, or fit with --holdout 0.4."
            )
        held = (recipe.left_out(held, options) or [held])[0]
    is_told = any(getattr(options, way) is not None for way in WAYS)
    if not (is_told or len(held) or options.compact):
        folds = _small(source, recipe, reporter)
    if options.open_set_fraction and folds is None and not len(held):
        raise InputError(
            "--open-set-fraction: no items are held out to calibrate with. Fit with --holdout 0.4, "
            "or give --calibrate or --cross-fit."
        )
    groups = None
    if options.group_column is not None:
        if options.calibrate is None and folds is None:
            raise _shared_groups(options.group_column)
        groups = groups_of_items(*own, options.group_column)
    if len(held):
        source.require_classes("calibration")
        held.require_classes("calibration")
    if folds is not None:
        items.require_classes("cross-fitting", least=2)
    return IndexPlan(source, items, held, holdout, seed, folds, groups)


def _built(
    plan: IndexPlan, posterior: LoadedPosterior, options: Namespace, reporter: Reporter
) -> Index:
    """Return the index of a plan, calibrated if it has something to calibrate with."""
    items, embedder, size = plan.items, posterior.embedder, options.batch_size
    open_set_fraction = options.open_set_fraction or 0.0
    with reporter.warnings():
        if plan.folds is not None:
            return embedder.cross_index(
                items.batches(size),
                items.classes,
                list(items.ids),
                folds=plan.folds,
                seed=options.seed,
                open_set_fraction=open_set_fraction,
                engine=options.engine,
                rank_by=options.rank_by,
                groups=plan.groups_of(items),
                progress=reporter.progress,
            )
        built = embedder.index(
            items.batches(size),
            items.classes,
            list(items.ids),
            engine=options.engine,
            rank_by=options.rank_by,
            compact=options.compact,
            progress=reporter.progress,
        )
    if len(plan.held):
        with without_fitted(options.calibrate or options.data, options, reporter):
            groups = plan.groups_of(plan.held)
            built.calibrate(
                plan.held.batches(size),
                plan.held.classes,
                open_set_fraction=open_set_fraction,
                groups=None if options.one_answer else groups,
                of=groups if options.one_answer else None,
                progress=reporter.progress,
            )
    return built


def _small(items: Source, recipe: ModelRecipe, reporter: Reporter) -> int | None:
    """Return the folds of a small collection that calibrates itself; None where it cannot."""
    if items.classes is None or len(items) > SMALL or items.fingerprint != recipe.fingerprint:
        return None
    labels = Column.of_labels(items.classes, len(items))
    sizes = np.unique(labels.values, return_counts=True)[1]
    if sizes[sizes > 1].sum() < FEW:
        return None
    try:
        check_sizes(labels)
    except InputError:
        return None
    reporter.note(
        f"{len(items):,} items calibrate themselves (--cross-fit {FOLDS}): guarantees hold if the "
        "model was not trained on them. --cross-fit 0 leaves it out"
    )
    return FOLDS


def _split(
    options: Namespace, recipe: ModelRecipe, source: Source, reporter: Reporter
) -> tuple[float | None, int]:
    """Return the share of the data to hold out, and the seed: of the fit, if these are its data."""
    asked, path = (options.holdout, options.seed), options.data
    if source.fingerprint != recipe.fingerprint:
        if recipe.holdout is not None and str(path.resolve()) == recipe.data:
            reporter.note(f"{path} has changed since the fit: what the fit left out is not known")
        return asked
    if options.calibrate is not None:
        return None, options.seed
    if recipe.holdout is None:
        if options.holdout is not None:
            recipe.left_out(source, options)  # says why not
        return asked
    if options.holdout is not None and asked != (recipe.holdout, recipe.seed):
        raise InputError(
            f"--holdout {options.holdout:g} --seed {options.seed}: the fit kept "
            f"{recipe.holdout:g} of {path} apart, with seed {recipe.seed}. Leave both out, and "
            "index follows."
        )
    reporter.note(
        f"the fit kept {recipe.holdout:.0%} of {path} apart: half of that calibrates, the other "
        "half is for evaluate and report"
    )
    return recipe.holdout, recipe.seed


def _tell(built: Index, n_queries: int, output: Path, reporter: Reporter) -> None:
    numbers: dict[str, Any] = {"items": len(built), "output": str(output)}
    reporter.say(f"indexed {len(built):,} items")
    if (calibration := built.calibration) is None:
        reporter.note(f"not calibrated: no match probabilities. {CALIBRATE}")
    else:
        numbers |= {"calibrated_with": n_queries, "thresholds": {}}
        numbers["cross_fitted"] = calibration.own_items
        kind = "cross-fitted" if calibration.own_items else "held-out"
        of = calibration.decides_about
        reporter.say(f"calibrated with {n_queries:,} {kind} items: {calibration.quality(of=of)}")
        for target in PRECISIONS:
            rule, words = guaranteed_rule(calibration, target, of)
            reporter.say(f"  {target:.0%} precise: {words}")
            numbers["thresholds"][f"{target:g}"] = None if rule is None else rule.value
    reporter.say(f"wrote {output}")
    reporter.numbers(numbers)
