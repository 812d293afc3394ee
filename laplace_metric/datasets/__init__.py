"""Real image sets for examples, benchmarks and tests, read without torchvision."""

from laplace_metric.datasets._formats import read_listed
from laplace_metric.datasets._image_set import ImageSet, split_classes
from laplace_metric.datasets._load import NAMES, captions, load
from laplace_metric.datasets._remotes import Reader, Remote, Request
from laplace_metric.datasets._wordnet import WordNetNouns, wordnet_nouns

__all__ = [
    "NAMES",
    "ImageSet",
    "Reader",
    "Remote",
    "Request",
    "WordNetNouns",
    "captions",
    "load",
    "read_listed",
    "split_classes",
    "wordnet_nouns",
]
