"""Your own folders of images, and real image sets for examples, benchmarks and tests.

Read without torchvision.
"""

from laplace_metric.datasets._formats import read_listed
from laplace_metric.datasets._image_set import ImageSet, split_classes
from laplace_metric.datasets._load import NAMES, captions, load
from laplace_metric.datasets._remotes import Reader, Remote, Request
from laplace_metric.datasets._wordnet import WordNetNouns, wordnet_nouns
from laplace_metric.datasets.folders import CentreCrop, ImageFolder, load_folder

__all__ = [
    "NAMES",
    "CentreCrop",
    "ImageFolder",
    "ImageSet",
    "Reader",
    "Remote",
    "Request",
    "WordNetNouns",
    "captions",
    "load",
    "load_folder",
    "read_listed",
    "split_classes",
    "wordnet_nouns",
]
