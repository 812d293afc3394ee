"""The prior precision, tuned by the evidence or on validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.validation import check_function, check_name
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.laplace import _prior as prior
from laplace_metric.laplace._fit import warn_if_negative
from laplace_metric.laplace._fitted import FittedModel, predicted_embedding
from laplace_metric.models import device_of, labelled_batches
from laplace_metric.models.heads import HeadActivations

Metric = Callable[[Embedding, Tensor], float]
"""(embeddings of N inputs, labels [N]) -> score, higher is better."""


class TunedPrior(FittedModel):
    """Finds the precision of the prior, and how many points the curvature counts as."""

    def optimize_prior_precision(
        self,
        method: str = "marglik",
        *,
        loader: Iterable[Any] | None = None,
        metric: Metric | None = None,
        bounds: Sequence[float] = prior.BOUNDS,
        tune_n_effective: bool = False,
        progress: bool = True,
    ) -> float:
        """Tune the prior precision, adopt it and return it.

        Parameters
        ----------
        method : "marglik" | "validation"
            Log marginal likelihood (needs no data), or the best ``metric`` on ``loader``.
        metric : (Embedding, labels [N]) -> float, higher is better.
        tune_n_effective : bool
            With "validation": search n_effective too, from a thousandth to a thousand times the
            fitted points. (The evidence of a contrastive loss says nothing about its scale.)

        Raises
        ------
        UnknownNameError
            For another method.
        InputError
            For data that the method lacks or does not take.

        Warns
        -----
        PriorAtEdgeWarning
            If the result lies at an end of ``bounds``.
        NegativeCurvatureWarning
            If the evidence is of a curvature much of which was negative.
        """
        check_name("method", method, ("marglik", "validation"))
        n_effective = self.posterior_.n_effective
        if method == "marglik":
            if tune_n_effective:
                raise InputError("tune_n_effective=True needs method='validation'.")
            how = self.settings.positivity
            warn_if_negative(self.hessian_, how, "this evidence is of no model", stacklevel=3)
            tuned = prior.by_marginal_likelihood(self.posterior_, bounds)
        else:
            score = self._validation_score(loader, metric, progress)
            sizes = prior.sizes(self.fitted_.n_points) if tune_n_effective else [n_effective]
            tuned, n_effective = prior.by_validation(score, bounds, sizes)
        self._fitted = self.fitted_.with_precision(tuned, n_effective)
        kept = n_effective if tune_n_effective else self.settings.n_effective
        self.settings = replace(self.settings, prior_precision=tuned, n_effective=kept)
        return tuned

    def _validation_score(
        self, loader: Iterable[Any] | None, metric: Metric | None, progress: bool
    ) -> Callable[[float, float], float]:
        if loader is None or metric is None:
            raise InputError("method='validation' needs loader= and metric=.")
        check_function("metric", metric, "embedding", "labels")
        device = device_of(self.model)
        batches = labelled_batches(loader, device, progress=progress, description="Validating")
        pairs = [(self.activations(inputs), labels) for inputs, labels in batches]
        activations = HeadActivations.concatenate([seen for seen, _ in pairs])
        target = torch.cat([y for _, y in pairs])
        fitted = self.fitted_

        def score(tau: float, n_effective: float) -> float:
            tuned = fitted.with_precision(tau, n_effective)
            embedding = predicted_embedding(activations.features, activations.raw, tuned)
            value = metric(embedding, target)
            try:
                return float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"metric gave {value!r:.60}: let it return one number, higher is better."
                ) from error

        return score
