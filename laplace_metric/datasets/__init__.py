"""Folders and tables of images as data sets, and two image sets that scikit-learn carries."""

from laplace_metric.datasets._crop import CentreCrop
from laplace_metric.datasets._image_folder import ImageFolder
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.datasets._load_folder import load_folder
from laplace_metric.datasets._sklearn_sets import load

__all__ = [
    "CentreCrop",
    "ImageFolder",
    "ImageSet",
    "load",
    "load_folder",
]
