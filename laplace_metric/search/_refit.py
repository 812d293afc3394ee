"""Fit a posterior to a part of the items, from what entered the head."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.heads._located import LocatedHead
from laplace_metric.inputs._inputs import BATCH, Inputs
from laplace_metric.laplace import Fitted, Settings
from laplace_metric.laplace._fit import fit_posterior
from laplace_metric.laplace._fit_options import FitOptions
from laplace_metric.search._protocols import FittedEmbedder

HEAD = "head"


class RefittableEmbedder(FittedEmbedder, Protocol):
    """Fitted embedder with settings by which another posterior can be fitted."""

    @property
    def settings(self) -> Settings:
        """Settings of a fit."""


@dataclass(frozen=True)
class HeadEmbedder:
    """A model with a posterior over its head, and the settings to fit another one."""

    model: nn.Module
    fitted_: Fitted
    settings: Settings


class _Directions(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


def refitted(embedder: RefittableEmbedder, features: Tensor, codes: Tensor) -> HeadEmbedder:
    head = embedder.fitted_.head
    model = _head_alone(head)
    pairs = zip(features.split(BATCH), codes.split(BATCH), strict=True)
    inputs = Inputs.of_batches("features", pairs, labelled=True)
    # of the size of the whole fit: what a part chooses would move each fold's numbers by a factor
    whole, options = embedder.fitted_.posterior, FitOptions(progress=False)
    settings = replace(
        embedder.settings,
        prior_precision=whole.prior_precision,
        temperature=whole.temperature,
    )
    with warnings.catch_warnings():  # the fit to all items has told them
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        fitted = fit_posterior(model, HEAD, inputs, settings, options)
    posterior = replace(fitted.posterior, prior_weights=whole.prior_weights)
    fitted = replace(fitted, posterior=posterior)
    return HeadEmbedder(model, fitted, settings)


def _head_alone(head: LocatedHead) -> nn.Module:
    """Return the head alone, with the normalisation of the model."""
    parts = [(HEAD, head.module)]
    parts += [("directions", _Directions())] if head.normalized else []
    return nn.Sequential(OrderedDict(parts)).eval()
