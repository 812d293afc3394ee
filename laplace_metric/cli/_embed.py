"""``laplace-metric embed``: mean embeddings and uncertainties in a file."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from laplace_metric._utils import files
from laplace_metric._utils.files import locked, write_atomically
from laplace_metric._utils.progress import tqdm
from laplace_metric.cli._loading import LoadedPosterior, load_posterior
from laplace_metric.cli._output import Reporter, csv_text, discard, parquet_bytes, reporter_of
from laplace_metric.cli.sources import EMBEDDING, Batches, Source, pyarrow, require_source
from laplace_metric.errors import FileFormatError, InputError

PART = files.FileKind("part", "a part of embeddings", 1)
PART_BATCHES = 50
"""Batches in a part: what an interrupted run does again at most."""


def embed(options: Namespace) -> None:
    """Embed and write; interrupted, the same command goes on after the last finished part."""
    output = options.output
    if output.suffix not in _WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(_WRITERS)}.")
    reporter = reporter_of(options, output)
    if output.suffix == ".parquet":
        pyarrow("parquet")  # a missing package is an error before the work, not after
    require_source(options.data)
    posterior = load_posterior(options.posterior, options, reporter)
    source = posterior.source(options.data, options, reporter)
    parts = files.refuse_link(output.with_name(f".{output.name}.parts"))
    with locked(parts.with_name(f"{parts.name}.lock"), seconds=0.0):  # two would mix their parts
        with reporter.warnings():
            mean, uncertainty = _embed_all(posterior, source, parts, options, reporter)
        write_atomically(output, _WRITERS[output.suffix](source, mean, uncertainty))
        discard(parts)
    low, middle, high = (float(f()) for f in (uncertainty.min, uncertainty.median, uncertainty.max))
    reporter.say(
        f"embedded {len(source):,} {source.kind} in {mean.shape[1]} dimensions; uncertainty "
        f"{low:.3g} to {high:.3g}, median {middle:.3g}\nwrote {output}"
    )
    quantiles = {"minimum": low, "median": middle, "maximum": high}
    reporter.numbers({"items": len(source), "uncertainty": quantiles, "output": str(output)})


def _embed_all(
    posterior: LoadedPosterior, source: Source, folder: Path, options: Namespace, reporter: Reporter
) -> tuple[Tensor, Tensor]:
    """Means [N, Z] and uncertainties [N], part by part; finished parts are read."""
    size = options.batch_size * PART_BATCHES
    run = {
        "posterior": files.read(options.posterior)[0][files.SEAL],
        "data": source.fingerprint,
        "size": size,
        "model": posterior.recipe.model,
        "read_options": source.options,
    }
    if options.overwrite:
        _discard_others(folder, run)
    parts = []
    with tqdm(total=len(source), desc="Embedding", disable=not reporter.progress) as bar:
        for start in range(0, len(source), size):
            rows = range(start, min(start + size, len(source)))
            part = files.refuse_link(folder / f"{start // size:06d}")
            if not (part / PART.index).exists():
                batches = source.take(rows).inputs(options.batch_size)
                files.write(part, {"run": run}, _embed_part(posterior, batches, bar.update), PART)
            parts.append(_read_part(part, run))
            bar.update(start + len(rows) - bar.n)
    return torch.cat([p["mean"] for p in parts]), torch.cat([p["uncertainty"] for p in parts])


def _embed_part(
    posterior: LoadedPosterior, batches: Batches, advance: Callable[[int], Any]
) -> dict[str, Tensor]:
    means, uncertainties = [], []
    for inputs, _ in batches:
        embedding = posterior.embedder(inputs)
        means.append(embedding.mean)
        uncertainties.append(embedding.uncertainty)
        advance(len(embedding))
    return {"mean": torch.cat(means), "uncertainty": torch.cat(uncertainties)}


def _discard_others(folder: Path, run: dict[str, Any]) -> None:
    """Remove the parts of another run, which was killed, perhaps when it had written its output."""
    first = folder / f"{0:06d}"
    if (first / PART.index).exists() and files.read(first, PART)[0].get("run") != run:
        discard(folder)


def _read_part(part: Path, run: dict[str, Any]) -> dict[str, Tensor]:
    content, tensors = files.read(part, PART)
    if content.get("run") != run:
        raise FileFormatError(
            f"{part.parent} belongs to another run (other data, model, posterior or options): "
            "delete it, or give --overwrite."
        )
    return tensors


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


def _parquet(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    lib = pyarrow("lib")
    flat = lib.array(mean.numpy().reshape(-1))
    lists = lib.FixedSizeListArray.from_arrays(flat, mean.shape[1])
    columns: dict[str, Any] = {"id": list(source.ids), EMBEDDING: lists}
    columns["uncertainty"] = lib.array(uncertainty.numpy())
    if source.classes is not None:
        columns["label"] = list(source.classes)
    return parquet_bytes(columns)


def _csv(source: Source, mean: Tensor, uncertainty: Tensor) -> str:
    labels = {} if source.classes is None else {"label": list(source.classes)}
    numbers = {"uncertainty": uncertainty.tolist()}
    numbers |= {f"embedding_{place}": column.tolist() for place, column in enumerate(mean.T)}
    return csv_text({"id": list(source.ids), **labels, **numbers})


_WRITERS: dict[str, Callable[[Source, Tensor, Tensor], bytes | str]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".parquet": _parquet,
    ".csv": _csv,
}
