"""A posterior in a folder: ``save`` and ``load``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from laplace_metric._utils.validation import as_path
from laplace_metric.laplace import _files as serialization
from laplace_metric.laplace._fit import warn_if_negative
from laplace_metric.laplace._fitted import Fitted, FittedModel
from laplace_metric.laplace._settings import Settings
from laplace_metric.models import Precomputed, unwrapped

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)


class Saved(FittedModel):
    """Writes the posterior, and reads it back onto a model."""

    if TYPE_CHECKING:

        @classmethod
        def from_fitted(cls, model: nn.Module, settings: Settings, fitted: Fitted) -> Self: ...

        def _sentence(self) -> str: ...

    def save(self, path: str | Path) -> None:
        """Write the posterior (not the model) to folder ``path``: safetensors + JSON, atomic.

        Raises
        ------
        WeightsChangedError
            If the head no longer has the weights of the fit.
        """
        fitted = self._fitted_to_these_weights(values=True)
        serialization.save_fitted(as_path("path", path), self.settings, fitted)
        _LOG.info("saved to %s: %s", path, self._sentence())

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> Self:
        """Read a posterior and put it on ``model``, whose head must be the fitted one.

        Without a model: a posterior of ``from_embeddings``.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, newer, or its head is not that of ``model``.

        Warns
        -----
        NegativeCurvatureWarning
            If much of its curvature was negative and counts by its size.
        """
        network = Precomputed() if model is None else unwrapped(model)
        settings, fitted = serialization.load_fitted(as_path("path", path), network)
        if isinstance(network, Precomputed):
            network.size = fitted.head.n_outputs
        warn_if_negative(fitted.posterior.curvature, settings.positivity, stacklevel=3)
        embedder = cls.from_fitted(network, settings, fitted)
        _LOG.info("loaded from %s: %s", path, embedder._sentence())
        return embedder
