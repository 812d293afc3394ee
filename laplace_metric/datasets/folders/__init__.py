"""Images on disk: listed at once, read when they are needed.

Data flow, a file a step::

    a folder, a table    _load_folder   options, what the user gets
      -> paths, classes  _listing       endings, hidden files, links, class folders
      -> pictures        _picture       upright, on white, grey or RGB
      -> tensors         _pixels, _crop several files at once; what cannot be read is named
      -> ImageFolder     _image_folder  rows, subsets, splits, loaders

The command line reads its folders and tables of images through the same files.
"""

from laplace_metric.datasets.folders._crop import CentreCrop
from laplace_metric.datasets.folders._image_folder import ImageFolder, Thumbnails
from laplace_metric.datasets.folders._listing import (
    ENDINGS,
    check_listed,
    files_below,
    images_below,
    is_image,
    top_folders,
)
from laplace_metric.datasets.folders._load_folder import load_folder
from laplace_metric.datasets.folders._picture import centre_square
from laplace_metric.datasets.folders._pixels import Pixels, Remedies, is_grey

__all__ = [
    "ENDINGS",
    "CentreCrop",
    "ImageFolder",
    "Pixels",
    "Remedies",
    "Thumbnails",
    "centre_square",
    "check_listed",
    "files_below",
    "images_below",
    "is_grey",
    "is_image",
    "load_folder",
    "top_folders",
]
