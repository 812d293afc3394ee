"""Encode inputs by several models with posteriors, side by side, and compare them.

With u_m the embedding of model m and d_m its squared distances under its posterior,

    v = [u_1 ; ... ; u_M] / sqrt(M)      |v(x) - v(y)|^2 = mean_m |u_m(x) - u_m(y)|^2

and the squared distance of two inputs is that of one of the models, each as likely as any other:

    E d = mean_m E d_m        Var d = mean_m Var d_m + mean_m (E d_m - E d)^2

The second term is how far the models disagree. The spaces of two networks have no coordinates in
common, so that it is defined for distances, and not for embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from laplace_metric.inputs import ModelInput
from laplace_metric.io import digest
from laplace_metric.laplace import Distance
from laplace_metric.laplace._ensemble_vectors import EnsembleVectors
from laplace_metric.laplace._predictive_vectors import PredictiveVectors
from laplace_metric.laplace.distance._squared_distance import mixed_distance
from laplace_metric.models._fingerprints import Fingerprints
from laplace_metric.search._encoded import Encoded
from laplace_metric.search._encoder import BatchEncoder, Encoder
from laplace_metric.search._pair_distances import PairMoments
from laplace_metric.search._protocols import FittedEmbedder, VectorMap


class EnsembleEncoder(BatchEncoder):
    """Several models with posteriors, as they are now.

    Parameters
    ----------
    members : sequence of M embedders
        Fitted embedders of one geometry.

    Attributes
    ----------
    pairs : PairMoments
        Distances between encoded queries and items.
    identity : str
        Digest of those of the members, in their order.
    fitted_rows : uint64 [N] or None
        Fingerprints of the head inputs of the first member that has any.
    rankings : tuple of str
        "mean", "shared", and "predictive" if the heads of all members are linear. A compact index
        would have one number for the errors of all members, and there is none.
    """

    def __init__(self, members: Sequence[FittedEmbedder]) -> None:
        encoders = [Encoder.of(member) for member in members]
        if any(member.fitted_.near_far is None for member in members):
            encoders = [encoder.without_epistemic() for encoder in encoders]  # in one unit
        self._encoders = encoders
        self.spherical = encoders[0].spherical
        self.identity = digest(f"ensemble {' '.join(e.identity for e in encoders)}", ())
        widths = [encoder.n_kept for encoder in encoders]
        n_outputs = [member.fitted_.head.n_outputs for member in members]
        self.pairs: PairMoments = MixedPairs([e.pairs for e in encoders], n_outputs, widths)
        known = [i for i, encoder in enumerate(encoders) if encoder.fitted_rows is not None]
        self._known = known[0] if known else 0
        self.fitted_rows = encoders[self._known].fitted_rows
        self.predictive: VectorMap | None = None
        self.rankings: tuple[str, ...] = ("mean", "shared")
        vectors = tuple(
            e.predictive for e in encoders if isinstance(e.predictive, PredictiveVectors)
        )
        if len(vectors) == len(encoders):
            self.predictive = EnsembleVectors(vectors)
            self.rankings += ("predictive",)

    @property
    def device(self) -> torch.device:
        """Device of the first model."""
        return self._encoders[0].device

    def __call__(self, inputs: ModelInput, rows: list[Fingerprints] | None = None) -> Encoded:
        """Encode one batch; ``rows`` gets the fingerprints of what enters one of the heads."""
        parts = [
            encoder(inputs, rows if number == self._known else None)
            for number, encoder in enumerate(self._encoders)
        ]
        return Encoded(
            torch.cat([part.mean for part in parts], 1) / len(parts) ** 0.5,
            torch.stack([part.trace for part in parts]).mean(0),
            torch.stack([part.epistemic for part in parts]).mean(0),
            torch.cat([part.basis_inputs for part in parts], 1),
        )


class MixedPairs:
    """Moments of the squared distance of pairs, under one of several models.

    Parameters
    ----------
    pairs : sequence of M PairMoments
        Distances of each model.
    n_outputs : sequence of M int
        Number of coordinates of each embedding.
    widths : sequence of M int
        Number of head inputs that are kept of each.
    """

    def __init__(
        self, pairs: Sequence[PairMoments], n_outputs: Sequence[int], widths: Sequence[int]
    ) -> None:
        self._pairs, self._n_outputs, self._widths = pairs, list(n_outputs), list(widths)
        self.spherical = pairs[0].spherical

    def __call__(self, queries: Encoded, items: Encoded, positions: Int[Tensor, "Q k"]) -> Distance:
        """Return [Q, k] for the items at ``positions`` [Q, k]; those at -1 are infinitely far."""
        sides = zip(self._pairs, self._split(queries), self._split(items), strict=True)
        distances = [pairs(mine, theirs, positions) for pairs, mine, theirs in sides]
        return mixed_distance(distances)

    def _split(self, encoded: Encoded) -> list[Encoded]:
        """Return what each model gave; traces and epistemic numbers are those of all."""
        root = len(self._widths) ** 0.5
        means = encoded.mean.split(self._n_outputs, 1)
        kept = encoded.basis_inputs.split(self._widths, 1)
        return [
            Encoded(mean * root, encoded.trace, encoded.epistemic, own)
            for mean, own in zip(means, kept, strict=True)
        ]
