"""Features of the fitting data: in memory while small, on disk beyond, durable where asked.

The model runs once; its features are stored and read back in blocks, several times. Memory used is
at most ``memory_bytes`` (twice that for the moment in which the batches are joined), one block, and
one shard where features go to disk.
"""

from laplace_metric.models.features._durable import FEATURE_FOLDER, DurableRows
from laplace_metric.models.features._rows import (
    Block,
    FeatureSource,
    Kept,
    check_finite,
    check_shapes,
)
from laplace_metric.models.features._store import (
    BLOCK_BYTES,
    FINGERPRINTS,
    FeatureStore,
    Fingerprints,
    MemoryRows,
    block_rows,
    projection_weights,
    row_fingerprints,
    sorted_fingerprints,
)

__all__ = [
    "BLOCK_BYTES",
    "FEATURE_FOLDER",
    "FINGERPRINTS",
    "Block",
    "DurableRows",
    "FeatureSource",
    "FeatureStore",
    "Fingerprints",
    "Kept",
    "MemoryRows",
    "block_rows",
    "check_finite",
    "check_shapes",
    "projection_weights",
    "row_fingerprints",
    "sorted_fingerprints",
]
