"""Real image sets for examples, benchmarks and tests, read without torchvision."""

from laplace_metric.datasets._image_set import ImageSet, split_classes
from laplace_metric.datasets._load import NAMES, load

__all__ = ["NAMES", "ImageSet", "load", "split_classes"]
