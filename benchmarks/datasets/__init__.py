"""Image sets and texts for benchmarks, tutorials and tests, read without torchvision."""

from benchmarks.datasets.load import NAMES, captions, load
from benchmarks.datasets.wordnet import WordNetNouns, wordnet_nouns
from laplace_metric.datasets import ImageSet

__all__ = ["NAMES", "ImageSet", "WordNetNouns", "captions", "load", "wordnet_nouns"]
