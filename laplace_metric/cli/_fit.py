"""``laplace-metric fit`` and ``embed``: a posterior on the last layer, and its embeddings."""

from __future__ import annotations

import io
import json
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from laplace_metric import io as files
from laplace_metric.cli._loading import (
    ModelRecipe,
    load_model_and_data,
    load_posterior,
)
from laplace_metric.cli._output_paths import discard, working_folder
from laplace_metric.cli._reporter import reporter_of
from laplace_metric.cli._sources import Source, require_data
from laplace_metric.cli._table_files import csv_text
from laplace_metric.errors import InputError
from laplace_metric.inputs import read_loader
from laplace_metric.io import write_atomically
from laplace_metric.laplace._settings import AUTO
from laplace_metric.laplace._vectors import all_unit, settings_of_vectors
from laplace_metric.laplace_embedder import LaplaceEmbedder
from laplace_metric.models import Precomputed
from laplace_metric.models._batches import input_batches
from laplace_metric.models._modules import device_of

SUMMARY = (
    "fitted {items:,} items of {classes:,} classes in {seconds:.1f} s\n"
    "head {head!r}: {parameters:,} uncertain parameters, structure {structure}, prior precision "
    "{prior_precision:.3g}, embeddings of {dimensions} dimensions\n"
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
            prior_precision=options.prior_precision,
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
        "prior_precision": settings.prior_precision,
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


# ``laplace-metric embed``: mean embeddings and uncertainties in a file.


def embed(options: Namespace) -> None:
    """Embed and write."""
    output = options.output
    if output.suffix not in _WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(_WRITERS)}.")
    reporter = reporter_of(options, output)
    require_data(options)
    posterior = load_posterior(options.posterior, options, reporter)
    source = posterior.source(options.data, options, reporter)
    means, uncertainties = list[Tensor](), list[Tensor]()
    batches = input_batches(
        read_loader("--data", source.batches(options.batch_size)),
        device_of(posterior.embedder.model),
        progress=reporter.progress,
        description="Embedding",
    )
    with reporter.warnings():
        for inputs in batches:
            embedding = posterior.embedder(inputs)
            means.append(embedding.mean)
            uncertainties.append(embedding.uncertainty)
    mean, uncertainty = torch.cat(means), torch.cat(uncertainties)
    write_atomically(output, _WRITERS[output.suffix](source, mean, uncertainty))
    reporter.say(f"embedded {len(source):,} {source.kind} in {mean.shape[1]} dimensions")
    reporter.say(f"wrote {output}")
    reporter.numbers({"items": len(source), "output": str(output)})


def _safetensors(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    tensors = {"embeddings": mean.contiguous(), "uncertainty": uncertainty.contiguous()}
    metadata = {"ids": json.dumps(source.ids)}
    if source.labels is not None:
        tensors["labels"], metadata["classes"] = source.labels, json.dumps(source.class_names)
    return tensors_to_bytes(tensors, metadata)


def _npz(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    arrays: dict[str, Any] = {"embeddings": mean.numpy(), "uncertainty": uncertainty.numpy()}
    if source.classes is not None:
        arrays["labels"] = np.array(source.classes)
    file = io.BytesIO()
    np.savez(file, ids=np.array(source.ids), **arrays)
    return file.getvalue()


def _items(source: Source) -> dict[str, Any]:
    labels = {} if source.classes is None else {"label": list(source.classes)}
    return {"id": list(source.ids), **labels}


def _csv(source: Source, mean: Tensor, uncertainty: Tensor) -> str:
    numbers = {f"embedding_{place}": column.tolist() for place, column in enumerate(mean.T)}
    return csv_text({**_items(source), "uncertainty": uncertainty.tolist(), **numbers})


_WRITERS: dict[str, Callable[[Source, Tensor, Tensor], bytes | str]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".csv": _csv,
}
