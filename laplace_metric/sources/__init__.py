"""Data on disk as batches: folders of images, tables of texts, files of arrays."""

from laplace_metric.sources.opening import open_source
from laplace_metric.sources.reading import Reading
from laplace_metric.sources.source import ARRAYS, IMAGES, TEXTS, Batches, Source

__all__ = [
    "ARRAYS",
    "IMAGES",
    "TEXTS",
    "Batches",
    "Reading",
    "Source",
    "open_source",
]
