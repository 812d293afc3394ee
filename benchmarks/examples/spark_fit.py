"""A fit with Spark: ``spark-submit benchmarks/examples/spark_fit.py``, or ``python -m ...`` alone.

Rows are mapped partition by partition and statistics merged as a tree (``treeReduce``), so the
driver gets few. The model runs once; its features are persisted by the executors, and each task of
the plan reads them once. Executors need this package; the model and the tasks are broadcast.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyspark import RDD, SparkContext, StorageLevel

from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.scale import Plan, collect, merge

if TYPE_CHECKING:
    from benchmarks.examples.at_scale import Problem

Row = tuple[np.ndarray[Any, Any], int]
Shard = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def fit_rdd(embedder: LaplaceEmbedder, rows: RDD[Row], batch_size: int = 1024) -> LaplaceEmbedder:
    """``rows`` are pairs (inputs of one point, label); a partition may be empty."""
    spark = rows.context
    plan = Plan(embedder, _stacked(rows.take(2)))
    encoder = spark.broadcast(plan.features)

    def encode(part: Iterable[Row]) -> Iterator[Shard]:
        for some in _batches(part, batch_size):
            labels = np.array([label for _, label in some])
            yield encoder.value(_stacked(some)).cpu().numpy(), labels

    features = rows.mapPartitions(encode).persist(StorageLevel.MEMORY_AND_DISK)
    while plan.task is not None:
        task = spark.broadcast(plan.task)

        def statistics(part: Iterable[Shard], task: Any = task) -> Iterator[Statistics]:
            found = [collect(task.value, *shard) for shard in part]
            return iter([merge(found)] if found else [])

        plan.send(features.mapPartitions(statistics).treeReduce(operator.add))
        task.unpersist()
    features.unpersist()
    return plan.result()


def _batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while some := list(islice(left, size)):
        yield some


def _stacked(rows: list[Row]) -> torch.Tensor:
    return torch.from_numpy(np.stack([inputs for inputs, _ in rows]))


def compare(given: Problem, spark: SparkContext, n_partitions: int = 8) -> None:
    """Spark beside one process."""
    pairs = list(zip(given.inputs.numpy(), given.labels.tolist(), strict=True))
    rows = spark.parallelize(pairs, n_partitions)
    given.compare({"Spark": lambda embedder: fit_rdd(embedder, rows)})


def main() -> None:
    """Run it as a command."""
    from benchmarks.examples.at_scale import chosen  # not what workers should have to import

    given = chosen(__doc__)
    with SparkContext(appName="laplace_metric") as spark:
        spark.setLogLevel("ERROR")
        compare(given, spark)


if __name__ == "__main__":
    main()
