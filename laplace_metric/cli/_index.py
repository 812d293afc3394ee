"""``laplace-metric index`` and ``evaluate``: build a calibrated gallery, and measure it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from laplace_metric import io as files
from laplace_metric.cli._gallery import POSTERIOR, LoadedIndex, Origin, load_gallery, without_fitted
from laplace_metric.cli._loading import ModelRecipe, load_posterior, read_options_of
from laplace_metric.cli._output import Reporter, reporter_of, require_folder, require_new
from laplace_metric.cli._parser import RUN, run_text
from laplace_metric.cli._sources import Source, require_source
from laplace_metric.errors import InputError
from laplace_metric.io import write_atomically
from laplace_metric.search import IndexReport
from laplace_metric.search._evaluate import PRECISIONS, guaranteed_threshold
from laplace_metric.search._storage import INDEX


def index(options: Namespace) -> None:
    """Build, calibrate if there is something to calibrate with, save."""
    reporter, folder = reporter_of(options), options.output
    require_folder(folder)
    require_new(folder / INDEX.index, overwrite=options.overwrite, named=folder)
    ways = {"--calibrate": options.calibrate, "--holdout": options.holdout}
    ways |= {"--cross-fit": options.cross_fit}
    if len(chosen := [name for name, value in ways.items() if value is not None]) > 1:
        raise InputError(f"{' and '.join(chosen)}: give one of them.")
    for path in filter(None, (options.data, options.calibrate)):
        require_source(path)
    posterior = load_posterior(options.posterior, options, reporter)
    source = posterior.source(options.data, options, reporter)
    holdout, seed = _split(options, posterior.recipe, source, reporter)
    if options.cross_fit is not None and options.compact:
        raise InputError(
            "--cross-fit is for small collections, --compact for large ones: give one."
        )
    if options.cross_fit is not None and holdout is not None:
        raise InputError(
            f"--cross-fit: the fit kept {holdout:g} of {options.data} apart, which calibrates. "
            "Leave --cross-fit out, or fit without --holdout."
        )
    origin = Origin(
        data=str(options.data.resolve()),
        fingerprint=source.fingerprint,
        holdout=holdout,
        seed=seed,
        read_options=_columns(options),
    )
    items, held, _ = (source.take(rows) for rows in origin.split(len(source)))
    if options.calibrate is not None:
        held = posterior.source(options.calibrate, options, reporter)
        _refuse_same(held, source, options)
        held = (posterior.recipe.left_out(held, options) or [held])[0]
        origin = replace(origin, calibrated_with=held.fingerprint)
    if options.open_set_fraction and options.cross_fit is None and not len(held):
        raise InputError(
            "--open-set-fraction: no items are held out to calibrate with. Fit with --holdout 0.4, "
            "or give --calibrate or --cross-fit."
        )
    if len(held):
        source.require_classes("calibration")
        held.require_classes("calibration")
    loader, ids = items.inputs(options.batch_size), list(items.ids)
    with reporter.warnings():
        if options.cross_fit is None:
            watched = reporter.watch("Indexing", loader)
            built = posterior.embedder.index(
                watched,
                items.classes,
                ids,
                engine=options.engine,
                rank_by=options.rank_by,
                compact=options.compact,
                progress=False,
            )
        else:
            items.require_classes("cross-fitting", least=2)
            built = posterior.embedder.cross_index(
                loader,
                items.classes,
                ids,
                folds=options.cross_fit,
                seed=options.seed,
                open_set_fraction=options.open_set_fraction or 0.0,
                engine=options.engine,
                rank_by=options.rank_by,
                progress=reporter.progress,
            )
    origin = replace(origin, embedder=built.encoder.identity)
    posterior = replace(posterior, recipe=posterior.recipe.read_as(source))
    gallery = LoadedIndex(built, posterior, origin)
    if len(held):
        queries = reporter.watch("Calibrating", held.inputs(options.batch_size))
        with without_fitted(options.calibrate or options.data, options, reporter):
            built.calibrate(
                queries, held.classes, open_set_fraction=options.open_set_fraction or 0.0
            )
    _save(gallery, folder)
    write_atomically(folder / RUN, run_text(options))
    _tell(gallery, len(items) if options.cross_fit else len(held), options, reporter)


def _split(
    options: Namespace, recipe: ModelRecipe, source: Source, reporter: Reporter
) -> tuple[float | None, int]:
    """Share of the data to hold out, and seed: of the fit, if these are its data."""
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


def _columns(options: Namespace) -> dict[str, Any]:
    """Return how the data are read, without the file of labels, which only an array needs."""
    return {name: value for name, value in read_options_of(options).items() if name != "labels"}


def _refuse_same(held: Source, source: Source, options: Namespace) -> None:
    if held.fingerprint == source.fingerprint:
        raise InputError(
            f"--calibrate {options.calibrate} holds the items of the index themselves, which would "
            "find themselves. Give other data, or fit with --holdout 0.4."
        )


def _save(gallery: LoadedIndex, folder: Path) -> None:
    with files.together(folder):
        gallery.posterior.embedder.save(folder / POSTERIOR)
        gallery.posterior.recipe.write(folder / POSTERIOR)
        gallery.origin.write(folder)
        gallery.index.save(folder)


def _tell(gallery: LoadedIndex, n_queries: int, options: Namespace, reporter: Reporter) -> None:
    calibration = gallery.index.calibration
    numbers: dict[str, Any] = {"items": len(gallery.index), "output": str(options.output)}
    reporter.say(f"indexed {len(gallery.index):,} items")
    if calibration is None:
        reporter.note(
            "not calibrated: no match probabilities. Fit with --holdout 0.4, or give --calibrate, "
            "or --cross-fit"
        )
    else:
        numbers |= {"calibrated_with": n_queries, "thresholds": {}}
        numbers["cross_fitted"] = calibration.cross_fitted
        kind = "cross-fitted" if calibration.cross_fitted else "held-out"
        reporter.say(f"calibrated with {n_queries:,} {kind} items: {calibration.quality()}")
        for target in PRECISIONS:
            threshold, words = guaranteed_threshold(calibration, target)
            reporter.say(f"  {target:.0%} precise: {words}")
            numbers["thresholds"][f"{target:g}"] = None if threshold is None else threshold.value
    reporter.say(f"wrote {options.output}")
    reporter.numbers(numbers)


# ``laplace-metric evaluate``: how much the answers of an index can be trusted, in numbers.


def evaluate(options: Namespace) -> None:
    """Measure and print."""
    reporter = reporter_of(options)
    require_queries(options)
    report, _ = measured(load_gallery(options.index, options, reporter), options, reporter)
    reporter.say(str(report))
    reporter.numbers(report.to_json())


def require_queries(options: Namespace) -> None:
    """Check the paths, before a model is loaded for them.

    Raises
    ------
    InputError
        If one cannot be read.
    """
    for path in filter(None, (options.data, options.open_set)):
        require_source(path)


def measured(
    gallery: LoadedIndex, options: Namespace, reporter: Reporter
) -> tuple[IndexReport, Source]:
    """A report of the data that options name, and the queries that it is of."""
    queries = gallery.queries(options.data, options, reporter)
    queries.require_classes("evaluation")
    ood = None
    if options.open_set is not None:
        source = gallery.posterior.source(options.open_set, options, reporter)
        ood = _watched(source, "Out-of-distribution", options, reporter)
    with without_fitted(options.data, options, reporter):
        loader = _watched(queries, "Evaluating", options, reporter)
        report = gallery.index.evaluate(loader, gallery.classes_of(queries), ood)
    if gallery.index.calibration is None:
        reporter.note(
            f"{options.index} is not calibrated: fit with --holdout or index with --calibrate"
        )
    return report, queries


def _watched(source: Source, title: str, options: Namespace, reporter: Reporter) -> Iterator[Any]:
    """Batches, with a bar from the first one on."""
    yield from reporter.watch(title, source.inputs(options.batch_size))
