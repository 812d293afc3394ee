"""What both estimators do: check rows and labels as scikit-learn does, and fit the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor, nn

from laplace_metric.errors import LabelError
from laplace_metric.laplace import FitOptions, Fitted, Settings, fit_posterior
from laplace_metric.models import Precomputed

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before 1.6 it is a method

    def validate_data(estimator: Any, /, *args: Any, **options: Any) -> Any:
        """As scikit-learn 1.6 has it."""
        return estimator._validate_data(*args, **options)


Array = npt.NDArray[Any]
ROWS = 256
"""That enter the model at once."""


@dataclass
class RowsEmbedder:
    """A posterior over the last layer of a model of rows, and how to fit another one."""

    model: nn.Module
    fitted_: Fitted
    settings: Settings

    @property
    def spherical(self) -> bool:
        """Whether embeddings are directions."""
        return self.fitted_.spherical


class PosteriorEstimator(BaseEstimator):  # type: ignore[misc]
    """Settings, checks and fit of the posterior."""

    model: nn.Module | None
    head: Any
    distance: str
    hessian: str
    structure: str
    prior_precision: float

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _checked(self, x: Any, y: Any) -> tuple[Array, Tensor]:
        """Rows [N, D] and the place of each label in ``classes_``, which is set."""
        x, y = validate_data(self, x, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise LabelError(f"y has one class, {self.classes_[0]!r}: pass two classes or more.")
        return x, torch.from_numpy(codes.astype(np.int64))

    def _seen(self, x: Any) -> Array:
        """Rows [N, D] of as many features as were fitted."""
        check_is_fitted(self)
        rows: Array = validate_data(self, x, reset=False, dtype=[np.float64, np.float32])
        return rows

    def _fit_posterior(self, x: Array, codes: Tensor) -> RowsEmbedder:
        model = Precomputed(x.shape[1]) if self.model is None else self.model
        head = "append" if self.model is None else self.head
        settings = Settings(
            distance=self.distance,
            hessian=self.hessian,
            structure=self.structure,
            prior_precision=self.prior_precision,
        )
        pairs = list(zip(batches_of(x), codes.split(ROWS), strict=True))
        fitted = fit_posterior(model, head, pairs, settings, FitOptions(progress=False))
        return RowsEmbedder(model, fitted, settings)


def batches_of(x: Array) -> list[Array]:
    """Rows in batches; the memory may be read-only, so that each is a copy."""
    return [np.array(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
