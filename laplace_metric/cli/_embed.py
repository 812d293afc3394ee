"""``laplace-metric embed``: embeddings of items with their uncertainty, in a file."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from laplace_metric.cli._loaded_posterior import load_posterior
from laplace_metric.cli._open_source import require_data
from laplace_metric.cli._reporter import reporter_of
from laplace_metric.cli._source import Source
from laplace_metric.cli._table_files import csv_text
from laplace_metric.errors import InputError
from laplace_metric.inputs import read_loader
from laplace_metric.io import write_atomically
from laplace_metric.models._batches import input_batches
from laplace_metric.models._modules import device_of

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
