"""``laplace-metric fit``: a posterior on the last layer of a model, from a folder or a file."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from laplace_metric._utils import files
from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._loading import load_model_and_data, remembered
from laplace_metric.cli._output import discard, reporter_of, require_folder, require_new
from laplace_metric.cli._recipe import ModelRecipe, split_rows
from laplace_metric.cli.parsing import RUN, run_text
from laplace_metric.cli.sources import Source, require_source
from laplace_metric.embedder import LaplaceEmbedder

CHECKPOINT = ".checkpoint"


def fit(options: Namespace) -> None:
    """Fit and save; interrupted, the same command goes on from the checkpoint."""
    reporter, folder, began = reporter_of(options), options.output, time.monotonic()
    require_folder(folder)
    require_new(folder / files.POSTERIOR.index, overwrite=options.overwrite, named=folder)
    require_source(options.data)
    with reporter.warnings():
        loaded, head, source = load_model_and_data(options, reporter)
        recipe = ModelRecipe(
            options.model, head, source.kind, source.options, *_data(options, source)
        )
        rows = split_rows(len(source), options.holdout, options.seed)[0]
        source.take(rows).require_classes("fit", least=2)
        items = remembered(source, loaded, head, options, reporter).take(rows)
        embedder = LaplaceEmbedder(loaded.model, head, **_settings(options))
        checkpoint = options.checkpoint or files.refuse_link(folder / CHECKPOINT)
        loader = items.batches(options.batch_size)
        embedder.fit(loader, progress=reporter.progress, checkpoint_dir=checkpoint)
        if options.optimize_prior:
            embedder.optimize_prior_precision()
    _save(embedder, recipe, folder)
    write_atomically(folder / RUN, run_text(options))
    discard(folder / CHECKPOINT)
    numbers = _numbers(embedder, items, recipe) | {"held_out": len(source) - len(items)}
    reporter.say(_summary(numbers, time.monotonic() - began))
    if options.holdout is not None:
        reporter.say(
            f"kept {numbers['held_out']:,} items apart, which index, evaluate and report use"
        )
    reporter.say(f"wrote {folder}")
    reporter.numbers({**numbers, "output": str(folder)})


def _data(options: Namespace, source: Source) -> tuple[str, str, float | None, int]:
    return str(options.data.resolve()), source.fingerprint, options.holdout, options.seed


def _settings(options: Namespace) -> dict[str, Any]:
    names = ("structure", "distance", "hessian", "positivity", "margin", "prior_precision")
    return {name: getattr(options, name) for name in names}


def _save(embedder: LaplaceEmbedder, recipe: ModelRecipe, folder: Path) -> None:
    with files.together(folder):
        recipe.write(folder)
        embedder.save(folder)


def _numbers(embedder: LaplaceEmbedder, source: Source, recipe: ModelRecipe) -> dict[str, Any]:
    fitted, settings = embedder.fitted_, embedder.settings
    return {
        "items": fitted.n_points,
        "classes": len(set(source.classes or ())),
        "model": recipe.model,
        "head": fitted.head.name,
        "parameters": fitted.jacobian.n_parameters,
        "structure": settings.structure,
        "prior_precision": settings.prior_precision,
        "dimensions": fitted.head.n_outputs,
    }


def _summary(numbers: dict[str, Any], seconds: float) -> str:
    return (
        f"fitted {numbers['items']:,} items of {numbers['classes']:,} classes in {seconds:.1f} s\n"
        f"head {numbers['head']!r}: {numbers['parameters']:,} uncertain parameters, structure "
        f"{numbers['structure']}, prior precision {numbers['prior_precision']:.3g}, embeddings of "
        f"{numbers['dimensions']} dimensions"
    )
