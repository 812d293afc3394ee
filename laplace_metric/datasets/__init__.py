"""Real image sets for examples, benchmarks and tests, read without torchvision."""

from laplace_metric.datasets.image_set import ImageSet
from laplace_metric.datasets.load import NAMES, load
from laplace_metric.datasets.splits import split_classes

__all__ = ["NAMES", "ImageSet", "load", "split_classes"]
