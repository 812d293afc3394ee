"""Folders and tables of images as data sets, and two image sets that scikit-learn carries."""

from laplace_metric.datasets._image_set import ImageSet, split_classes
from laplace_metric.datasets._sklearn_sets import NAMES, load
from laplace_metric.datasets.folders import CentreCrop, ImageFolder, load_folder

__all__ = [
    "NAMES",
    "CentreCrop",
    "ImageFolder",
    "ImageSet",
    "load",
    "load_folder",
    "split_classes",
]
