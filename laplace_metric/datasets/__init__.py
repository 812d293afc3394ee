"""Folders and tables of images as data sets, and two image sets that scikit-learn carries."""

from laplace_metric.datasets._folders import ImageFolder, load_folder
from laplace_metric.datasets._image_set import CentreCrop, ImageSet, load

__all__ = [
    "CentreCrop",
    "ImageFolder",
    "ImageSet",
    "load",
    "load_folder",
]
