"""``laplace-metric embed``: mean embeddings and uncertainties in a file."""

from __future__ import annotations

import io
import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor
from tqdm.auto import tqdm

from laplace_metric._utils import files
from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._opened import LoadedPosterior, open_posterior
from laplace_metric.cli._output import Reporter, reporter_of
from laplace_metric.cli.sources import EMBEDDING, Batches, Source, pyarrow
from laplace_metric.errors import FileFormatError, InputError

PART = files.FileKind("part", "a part of embeddings", 1)
PART_BATCHES = 50
"""Batches in a part: what an interrupted run does again at most."""


def embed(options: Namespace) -> None:
    """Embed and write; interrupted, the same command goes on behind the last whole part."""
    output = options.output
    if output.suffix not in _WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(_WRITERS)}.")
    voice = reporter_of(options, output)
    if output.suffix == ".parquet":
        pyarrow("parquet")  # a missing package is said before the work
    opened = open_posterior(options.posterior, options, voice)
    source = opened.source(options.data, options, voice)
    parts = output.with_name(f".{output.name}.parts")
    with voice.warnings():
        mean, uncertainty = _embedded(opened, source, parts, options, voice)
    write_atomically(output, _WRITERS[output.suffix](source, mean, uncertainty))
    shutil.rmtree(parts)
    low, middle, high = (float(f()) for f in (uncertainty.min, uncertainty.median, uncertainty.max))
    voice.say(
        f"embedded {len(source):,} {source.kind} in {mean.shape[1]} dimensions; uncertainty "
        f"{low:.3g} to {high:.3g}, median {middle:.3g}\nwrote {output}"
    )
    quantiles = {"minimum": low, "median": middle, "maximum": high}
    voice.numbers({"items": len(source), "uncertainty": quantiles, "output": str(output)})


def _embedded(
    opened: LoadedPosterior, source: Source, folder: Path, options: Namespace, voice: Reporter
) -> tuple[Tensor, Tensor]:
    """Means [N, Z] and uncertainties [N], part by part; parts that are there are read."""
    size = options.batch_size * PART_BATCHES
    posterior = files.read(options.posterior)[0]["sha256"]
    tell = {"posterior": posterior, "data": source.fingerprint, "size": size}
    tell |= {"model": opened.recipe.model, "reading": source.options}
    found = []
    with tqdm(total=len(source), desc="Embedding", disable=not voice.progress) as bar:
        for start in range(0, len(source), size):
            rows = range(start, min(start + size, len(source)))
            place = folder / f"{start // size:06d}"
            if not (place / PART.index).exists():
                batches = source.take(rows).inputs(options.batch_size)
                files.write(place, {"of": tell}, _part(opened, batches, bar.update), PART)
            found.append(_read(place, tell))
            bar.update(start + len(rows) - bar.n)
    return torch.cat([p["mean"] for p in found]), torch.cat([p["uncertainty"] for p in found])


def _part(
    opened: LoadedPosterior, batches: Batches, done: Callable[[int], Any]
) -> dict[str, Tensor]:
    means, uncertainties = [], []
    for inputs, _ in batches:
        embedding = opened.embedder(inputs)
        means.append(embedding.mean)
        uncertainties.append(embedding.uncertainty)
        done(len(embedding))
    return {"mean": torch.cat(means), "uncertainty": torch.cat(uncertainties)}


def _read(place: Path, tell: dict[str, Any]) -> dict[str, Tensor]:
    content, tensors = files.read(place, PART)
    if content.get("of") != tell:
        raise FileFormatError(
            f"{place.parent} belongs to another run (other data, model, posterior or options): "
            "delete it."
        )
    return tensors


def _safetensors(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    tensors, header = {"embeddings": mean, "uncertainty": uncertainty}, {"ids": source.ids}
    labels = source.numbers
    if labels is not None:
        tensors["labels"], header["classes"] = labels, source.class_names
    told = {name: json.dumps(values) for name, values in header.items()}
    return tensors_to_bytes({name: t.contiguous() for name, t in tensors.items()}, told)


def _npz(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    arrays: dict[str, Any] = {"embeddings": mean.numpy(), "uncertainty": uncertainty.numpy()}
    if source.classes is not None:
        arrays["labels"] = np.array(source.classes)
    file = io.BytesIO()
    np.savez(file, ids=np.array(source.ids), **arrays)
    return file.getvalue()


def _parquet(source: Source, mean: Tensor, uncertainty: Tensor) -> bytes:
    lib, parquet = pyarrow("lib"), pyarrow("parquet")
    flat = lib.array(mean.numpy().reshape(-1))
    lists = lib.FixedSizeListArray.from_arrays(flat, mean.shape[1])
    columns: dict[str, Any] = {"id": lib.array(source.ids), EMBEDDING: lists}
    columns["uncertainty"] = lib.array(uncertainty.numpy())
    if source.classes is not None:
        columns["label"] = lib.array(source.classes)
    file = io.BytesIO()
    parquet.write_table(lib.Table.from_pydict(columns), file)
    return file.getvalue()


_WRITERS: dict[str, Callable[[Source, Tensor, Tensor], bytes]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".parquet": _parquet,
}
