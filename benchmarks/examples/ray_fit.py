"""A fit with Ray, on one machine or a cluster: ``python -m benchmarks.examples.ray_fit``.

Two forms: rows of a Ray Data set, from files of any size, and plain tasks on shards. In both the
model runs once, features stay in Ray's object store, and each task of the plan reads them once.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.data
import torch
from torch import Tensor

from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature._passes import Pass
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.scale import Plan, collect, merge

if TYPE_CHECKING:
    from benchmarks.examples.at_scale import Problem

Arrays = dict[str, Any]
HeadInputEncoder = Callable[[Any], Tensor]
remote: Callable[[Callable[..., Any]], Any] = ray.remote


def fit_dataset(
    embedder: LaplaceEmbedder, rows: ray.data.Dataset, batch_size: int = 4096
) -> LaplaceEmbedder:
    """Ray Data: rows of "inputs" and "labels", as ``ray.data.read_parquet`` gives them.

    The driver holds the statistics of two batches at a time.
    """
    plan = Plan(embedder, torch.tensor(rows.take_batch(2)["inputs"]))
    encode = partial(_encode, plan.features)
    features = rows.map_batches(encode, batch_size=batch_size).materialize()
    while plan.task is not None:
        parts = features.map_batches(partial(_collect, plan.task), batch_size=batch_size)
        plan.send(merge(pickle.loads(row["statistics"]) for row in parts.iter_rows()))
    return plan.result()


def _encode(encoder: HeadInputEncoder, batch: Arrays) -> Arrays:
    features = encoder(torch.tensor(batch["inputs"]))
    return {"features": features.cpu().numpy(), "labels": batch["labels"]}


def _collect(task: Pass, batch: Arrays) -> Arrays:
    part = collect(task, batch["features"], batch["labels"])
    return {"statistics": np.array([pickle.dumps(part)], dtype=object)}


def fit_shards(embedder: LaplaceEmbedder, shards: Sequence[Any], inputs: Tensor) -> LaplaceEmbedder:
    """Plain tasks: ``shards`` are references to pairs (inputs, labels), ``inputs`` one batch.

    Statistics merge as a tree on the workers; the driver gets one.
    """
    plan = Plan(embedder, inputs)
    encoder = ray.put(plan.features)
    features = [_encode_shard.remote(encoder, shard) for shard in shards]
    while plan.task is not None:
        task = ray.put(plan.task)
        plan.send(ray.get(_tree([_collect_shard.remote(task, shard) for shard in features])))
    return plan.result()


@remote
def _encode_shard(encoder: HeadInputEncoder, shard: tuple[Any, Any]) -> tuple[Any, Any]:
    inputs, labels = shard
    return encoder(torch.as_tensor(inputs)).cpu().numpy(), labels


@remote
def _collect_shard(task: Pass, shard: tuple[Any, Any]) -> Statistics:
    return collect(task, *shard)


@remote
def _merge(*parts: Statistics) -> Statistics:
    return merge(parts)


def _tree(parts: list[Any], width: int = 8) -> Any:
    while len(parts) > width:
        parts = [_merge.remote(*parts[i : i + width]) for i in range(0, len(parts), width)]
    return _merge.remote(*parts)


def rows_of(inputs: Tensor, labels: Tensor, n_blocks: int) -> ray.data.Dataset:
    """Arrays in memory as a data set; yours comes from ``ray.data.read_parquet`` or the like."""
    arrays = ray.put((inputs.numpy(), labels.numpy()))

    def read(batch: Arrays) -> Arrays:
        x, y = ray.get(arrays)
        return {"inputs": x[batch["id"]], "labels": y[batch["id"]]}

    return ray.data.range(len(labels), override_num_blocks=n_blocks).map_batches(read)


def compare(given: Problem, n_shards: int = 8) -> None:
    """Both forms beside one process."""
    x, y = given.inputs, given.labels
    rows = rows_of(x, y, n_shards)
    shards = [ray.put(pair) for pair in zip(x.chunk(n_shards), y.chunk(n_shards), strict=True)]
    given.compare(
        {
            "Ray Data": lambda embedder: fit_dataset(embedder, rows),
            "Ray tasks": lambda embedder: fit_shards(embedder, shards, x[:2]),
        }
    )


def main() -> None:
    """Run it as a command."""
    from benchmarks.examples.at_scale import chosen  # not what workers should have to import

    given = chosen(__doc__)
    ray.init(include_dashboard=False, logging_level=logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    compare(given)
    ray.shutdown()


if __name__ == "__main__":
    main()
