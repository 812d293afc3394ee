"""Real image sets for examples, benchmarks and tests, read without torchvision."""

from laplace_metric.datasets.image_set import ImageSet, split_classes
from laplace_metric.datasets.load import NAMES, load

__all__ = ["NAMES", "ImageSet", "load", "split_classes"]
