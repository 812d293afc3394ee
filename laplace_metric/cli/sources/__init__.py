"""Data on disk as batches: folders of images, tables of texts, files of arrays."""

from laplace_metric.cli.sources._images import Pixels
from laplace_metric.cli.sources._opening import open_source
from laplace_metric.cli.sources._source import ARRAYS, IMAGES, TEXTS, Batches, ReadOptions, Source
from laplace_metric.cli.sources._texts import EMBEDDING, pyarrow

__all__ = [
    "ARRAYS",
    "EMBEDDING",
    "IMAGES",
    "TEXTS",
    "Batches",
    "Pixels",
    "ReadOptions",
    "Source",
    "open_source",
    "pyarrow",
]
