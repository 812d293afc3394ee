"""The model that a user names: a file's function, or a published one by its library."""

from laplace_metric.cli.models._load import FORMS, check_inputs, code_of, load_model
from laplace_metric.cli.models._published import LoadedModel

__all__ = ["FORMS", "LoadedModel", "check_inputs", "code_of", "load_model"]
