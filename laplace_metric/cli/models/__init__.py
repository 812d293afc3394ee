"""The model that a user names: a file's function, or a published one by its library.

What it gives for items is kept between commands (``KeptFeatures``).
"""

from laplace_metric.cli.models._feature_files import CACHE, FeatureFiles
from laplace_metric.cli.models._kept import KeptFeatures
from laplace_metric.cli.models._load import FORMS, check_inputs, code_of, load_model
from laplace_metric.cli.models._published import LoadedModel

__all__ = [
    "CACHE",
    "FORMS",
    "FeatureFiles",
    "KeptFeatures",
    "LoadedModel",
    "check_inputs",
    "code_of",
    "load_model",
]
