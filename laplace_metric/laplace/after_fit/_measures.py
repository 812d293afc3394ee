"""Numbers instead of distributions: of a loader, of pairs of inputs, of the posterior itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.validation import check_name
from laplace_metric.embedding import epistemic_number, label_entropy
from laplace_metric.errors import InputError
from laplace_metric.laplace._diagnosis import Diagnosis, Uncertainties, diagnose
from laplace_metric.laplace._distances import squared_distance
from laplace_metric.laplace._fitted import Fitted, FittedModel, predicted_embedding
from laplace_metric.laplace._pair_moments import Distance, EmbeddingPairs
from laplace_metric.laplace._posterior import covariance
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.models import Inputs, device_of, input_batches
from laplace_metric.models.heads import HeadActivations, check_rows


class Measures(FittedModel):
    """Uncertainties of a loader, distances of pairs, and a diagnosis."""

    def uncertainties(
        self, loader: Iterable[Any], *, kind: str = "uncertainty", progress: bool = True
    ) -> Tensor:
        """One number [N] for everything a loader yields, without its distributions.

        One forward pass an input; besides the result, only one batch is in memory at a time.

        Parameters
        ----------
        loader : iterable of batches
            Inputs, or ``(inputs, labels)``: pairs whose second entry is one whole number per item.
        kind : "uncertainty" | "epistemic" | "ambiguity"
            Which number of ``Embedding``.

        Raises
        ------
        NotFittedError, EmptyLoaderError, InputError, NonFiniteError, WeightsChangedError

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> embedder.uncertainties([x[:10], (x[10:], y[10:])], progress=False).shape
        torch.Size([20])
        """
        fitted = self._fitted_to_these_weights()
        check_name("kind", kind, ("uncertainty", "epistemic", "ambiguity"))
        of_fit_set = label_entropy if kind == "ambiguity" else epistemic_number
        traces, spherical = traces_of(fitted.jacobian, fitted.posterior), fitted.spherical
        device, title = device_of(self.model), "Uncertainties"
        parts = []
        for inputs in input_batches(loader, device, progress=progress, description=title):
            seen = self._captured(fitted, inputs)
            if kind != "uncertainty":
                check_rows(seen.raw, spherical=spherical)
                parts.append(of_fit_set(fitted.near_far, seen.features))
                continue
            with full_precision():
                parts.append(traced(traces, seen.features, seen.raw, spherical=spherical))
                check_rows(seen.raw, parts[-1], spherical=spherical)
        return torch.cat(parts)

    def distance(self, x: Inputs, y: Inputs, *, shared_weights: bool = True) -> Distance:
        """Mean and variance [B] of the squared distance between the rows of two batches.

        Both embeddings come from the same uncertain weights, so their errors are correlated.
        For a linear head, moments of raw embeddings are a closed form and those on the sphere a
        quadrature, half a millisecond a pair. Its relative error is largest for zero-mean
        embeddings: of the standard deviation 1.4 % at Z = 2, 0.4 % at Z = 3 and 0.2 % at Z = 4.
        Other heads are linearised at their weights. In float32 the covariances of inputs .001 apart
        lose most digits: use a float64 head there.

        Parameters
        ----------
        shared_weights : bool
            False treats the two embeddings as independent, as sampling each on its own does.

        Raises
        ------
        InputError
            If the batches have different lengths, or rows without a direction.
        NonFiniteError
            For rows with NaN or infinity.
        WeightsChangedError
            If the head no longer has the weights of the fit.
        """
        fitted = self._fitted_to_these_weights()
        a, b = self._captured(fitted, x), self._captured(fitted, y)
        if len(a.raw) != len(b.raw):
            raise InputError(f"x has {len(a.raw)} rows and y {len(b.raw)}: pass pairs, row by row.")
        return _distance(a, b, fitted, shared_weights)

    def diagnose(self, inputs: Inputs | None = None) -> Diagnosis:
        """Why the uncertainty is what it is, in numbers and words; with ``inputs``, of theirs too.

        Warns
        -----
        UndefinedMetricWarning
            If all inputs have one uncertainty or one length: then these do not correlate (NaN).

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> embedder = LaplaceEmbedder.from_embeddings(torch.randn(20, 8), torch.arange(20) % 4)
        >>> embedder.diagnose().n_parameters
        64
        """
        fitted = self.fitted_
        vanishes = fitted.loss.vanishes
        if inputs is None:
            return diagnose(fitted.posterior, vanishes=vanishes)
        activations = self.activations(inputs)
        embedding = predicted_embedding(activations.features, activations.raw, fitted)
        seen_as = Uncertainties.of(embedding.uncertainty, activations.raw)
        return diagnose(fitted.posterior, vanishes=vanishes, uncertainties=seen_as)


@full_precision()
def _distance(
    a: HeadActivations, b: HeadActivations, fitted: Fitted, shared_weights: bool
) -> Distance:
    head, posterior, spherical = fitted.jacobian, fitted.posterior, fitted.spherical
    xx, yy = (covariance(head, posterior, side.features) for side in (a, b))
    both = (a.features, b.features)
    xy = covariance(head, posterior, *both) if shared_weights else None
    pairs = EmbeddingPairs(a.raw, b.raw, xx, yy, xy)
    squared = squared_distance(pairs, spherical=spherical, exact=True)
    check_rows(b.raw, spherical=spherical)
    check_rows(a.raw, squared.mean, squared.variance, spherical=spherical)
    return squared
