"""Features of the fitting data: in memory while small, on disk beyond, durable where asked.

The model runs once; its features are kept and read back in blocks, several times. Memory held is
at most ``memory_bytes`` (twice that for the moment in which the batches are joined) plus one block.
"""

from laplace_metric.features.checks import BLOCK_BYTES, block_rows, check_finite, check_shapes
from laplace_metric.features.protocol import Block, FeatureSource
from laplace_metric.features.spool import Spool
from laplace_metric.features.store import FeatureStore

__all__ = [
    "BLOCK_BYTES",
    "Block",
    "FeatureSource",
    "FeatureStore",
    "Spool",
    "block_rows",
    "check_finite",
    "check_shapes",
]
