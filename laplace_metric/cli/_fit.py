"""``laplace-metric fit``: fit a posterior to items on disk."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from torch import nn

from laplace_metric import io as files
from laplace_metric.cli._loaded_posterior import load_model_and_data
from laplace_metric.cli._model_recipe import ModelRecipe
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._output_paths import discard, working_folder
from laplace_metric.cli._reporter import reporter_of
from laplace_metric.cli._source import Source
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.laplace._settings_of_vectors import all_unit, settings_of_vectors
from laplace_metric.laplace.fit._settings import AUTO
from laplace_metric.models import Precomputed

SUMMARY = (
    "fitted {items:,} items of {classes:,} classes in {seconds:.1f} s\n"
    "head {head!r}: {parameters:,} uncertain parameters, structure {structure}, prior precision "
    "{prior_precision:.3g}, temperature {temperature:.3g}, embeddings of {dimensions} dimensions\n"
    "compared by distance {distance}, hessian {hessian}"
)


def fit(options: Namespace) -> None:
    """Fit and save; interrupted, the same command goes on from the checkpoint."""
    output, began = options.output, time.monotonic()
    require_data(options)  # a path that does not exist comes before an output that does
    reporter = reporter_of(options, output)
    with reporter.warnings():
        loaded, head, source = load_model_and_data(options, reporter)
        recipe = ModelRecipe(
            model=options.model,
            head=head,
            kind=source.kind,
            read_options=source.options,
            data=str(options.data.resolve()),
            fingerprint=source.fingerprint,
            holdout=options.holdout,
            seed=options.seed,
        )
        items = source.take(recipe.split(len(source))[0])
        items.require_classes("fit", least=2)
        embedder = LaplaceEmbedder(
            loaded.model,
            head,
            structure=options.structure,
            **_compared_by(options, loaded.model, items),
            positivity=options.positivity,
            margin=options.margin,
            prior_precision=options.prior_precision or AUTO,
            temperature=options.temperature or AUTO,
        )
        checkpoint = options.checkpoint or files.refuse_link(working_folder(output))
        loader = items.batches(options.batch_size, labelled=True)
        embedder.fit(loader, progress=reporter.progress, checkpoint_dir=checkpoint)
        if options.optimize_prior:
            embedder.tune_prior()
    files.write(output, {"posterior": embedder._part(), "recipe": recipe.part()})
    discard(working_folder(output))
    fitted, settings = embedder.fitted_, embedder.settings
    numbers = {
        "items": fitted.n_points,
        "classes": len(set(items.classes or ())),
        "model": recipe.model,
        "head": fitted.head.name,
        "parameters": fitted.jacobian.n_parameters,
        "structure": settings.structure,
        "distance": settings.distance,
        "hessian": settings.hessian,
        "prior_precision": embedder.posterior_.prior_precision,
        "temperature": embedder.posterior_.temperature,
        "dimensions": fitted.head.n_outputs,
        "held_out": len(source) - len(items),
        "output": str(output),
    }
    reporter.say(SUMMARY.format(**numbers, seconds=time.monotonic() - began))
    if options.holdout is not None:
        reporter.say(
            f"kept {numbers['held_out']:,} items apart, which index, evaluate and report use"
        )
    reporter.say(f"wrote {output}")
    reporter.numbers(numbers)


def _compared_by(options: Namespace, model: nn.Module, items: Source) -> dict[str, Any]:
    """Return distance and Hessian: those asked for; of vectors, those that suit their lengths."""
    given = {name: getattr(options, name) for name in ("distance", "hessian")}
    asked = {name: value for name, value in given.items() if value != AUTO}
    if not isinstance(model, Precomputed):
        return asked
    unit = "distance" not in asked and all(
        all_unit(model(batch)) for batch, _ in items.batches(options.batch_size)
    )
    return settings_of_vectors(asked, unit=unit)
