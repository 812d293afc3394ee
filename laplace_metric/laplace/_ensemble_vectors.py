"""Predictive vectors of several models side by side.

With v_m the predictive vectors of model m (``_predictive_vectors``), of length 1 for directions,

    v = [v_1 ; ... ; v_M] / sqrt(M)        <v(x), v(y)> = mean_m E[z_m(x)' z_m(y)]

the expected inner product under a posterior that has one mode for each model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from laplace_metric.laplace._predictive_vectors import PredictiveVectors, largest_columns


@dataclass(frozen=True)
class EnsembleVectors:
    """Map from the head inputs of M models, side by side, to predictive vectors.

    Parameters
    ----------
    parts : tuple of M PredictiveVectors
        Map of each model.
    columns : Tensor [r] or None
        Eigenvectors that are kept, numbered through all models. None, the default: all.
    """

    parts: tuple[PredictiveVectors, ...]
    columns: Int[Tensor, " r"] | None = None

    @cached_property
    def variances(self) -> Float[Tensor, " A"]:
        """Eigenvalues c of all models."""
        return torch.cat([part.variances for part in self.parts])

    @property
    def _widths(self) -> list[int]:
        return [len(part.variances) for part in self.parts]

    def with_columns(self, columns: Int[Tensor, " r"]) -> EnsembleVectors:
        """Keep these eigenvectors."""
        return replace(self, columns=columns)

    @property
    def takes_priors(self) -> bool:
        """True if ``with_prior`` is known, of each model."""
        return all(part.takes_priors for part in self.parts)

    def with_prior(self, prior: float) -> EnsembleVectors:
        """Return the map under another prior precision of each model, as ``PredictiveVectors``."""
        return EnsembleVectors(tuple(part.with_prior(prior) for part in self.parts), self.columns)

    def about(self, centre: Float[Tensor, " A"] | None) -> EnsembleVectors:
        """Return the map about a head input of each model, side by side; None: about 0."""
        own = [None] * len(self.parts) if centre is None else centre.split(self._widths)
        parts = zip(self.parts, own, strict=True)
        return EnsembleVectors(tuple(part.about(at) for part, at in parts), self.columns)

    @property
    def centre(self) -> Float[Tensor, " A"] | None:
        """Head inputs about which vectors are taken, side by side; None: about 0."""
        own = [part.centre for part in self.parts if part.centre is not None]
        return torch.cat(own) if own else None

    @property
    def spherical(self) -> bool:
        """True if embeddings of all models are directions."""
        return all(part.spherical for part in self.parts)

    def as_directions(self) -> EnsembleVectors:
        """Return the map of whose models each has vectors of length 1, as ``PredictiveVectors``."""
        return replace(self, parts=tuple(part.as_directions() for part in self.parts))

    def of_rank(
        self, second_moments: Float[Tensor, " A"], rank: int | None, kept: float
    ) -> EnsembleVectors:
        """Keep the columns that matter most, of any model, as ``PredictiveVectors`` does.

        Parameters
        ----------
        second_moments : Tensor [A]
            Mean squares that ``lengths`` returned.
        rank : int or None
            Number r of columns. None: as few as keep the share ``kept`` of the squared length.
        kept : float in (0, 1]
            Share of the squared length that is kept.
        """
        return self.with_columns(largest_columns(self.variances * second_moments, rank, kept))

    def seen(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N A"]:
        """Return head inputs of all models, side by side, as ``PredictiveVectors.seen``."""
        widths = [part.layout.n_features for part in self.parts]
        pairs = zip(self.parts, h.split(widths, 1), strict=True)
        return torch.cat([part.seen(columns) for part, columns in pairs], 1)

    def __call__(self, x: Float[Tensor, "N A"], factor: float = 1.0) -> Float[Tensor, "N V"]:
        """Return v of head inputs seen in the bases.

        Parameters
        ----------
        x : Tensor [N, A]
            Result of ``seen``.
        factor : float >= 0
            Temperature, in units of those of the posteriors. Default: 1.
        """
        pairs = zip(self._kept_parts(), x.split(self._widths, 1), strict=True)
        return torch.cat([part(own, factor) for part, own in pairs], 1) / len(self.parts) ** 0.5

    def _kept_parts(self) -> Iterator[PredictiveVectors]:
        """Yield the map of each model, with its own columns."""
        start = 0
        for part, width in zip(self.parts, self._widths, strict=True):
            own = part
            if self.columns is not None:
                there = (self.columns >= start) & (self.columns < start + width)
                own = part.with_columns(self.columns[there] - start)
            start += width
            yield own

    def grams(self, x: Float[Tensor, "n A"]) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """Return the sums of the models' inner products of z, and of C^(1/2) h.

        Models whose embeddings are directions count in units of their own mean of ``|z|^2``.
        """
        of_means, of_posteriors = x.new_zeros(len(x), len(x)), x.new_zeros(len(x), len(x))
        for part, own in zip(self.parts, x.split(self._widths, 1), strict=True):
            z, h = part.grams(own)
            unit = len(self.parts) * (float(z.diagonal().mean()) if part.spherical else 1.0)
            of_means, of_posteriors = of_means + z / unit, of_posteriors + h / unit
        return of_means, of_posteriors

    def lengths(self, x: Float[Tensor, "N A"]) -> tuple[float, float, Tensor]:
        """Return the mean of ``|z|^2``, that of ``h' C h``, and the mean square of each input [A].

        Models whose embeddings are directions count in units of their own mean of ``|z|^2``.
        """
        pairs = zip(self.parts, x.split(self._widths, 1), strict=True)
        found = [part.lengths(own) for part, own in pairs]
        n, of_means, of_posteriors = len(self.parts), 0.0, 0.0
        squares = []
        for part, (length, own, square) in zip(self.parts, found, strict=True):
            unit = n * length if part.spherical else float(n)
            of_means, of_posteriors = of_means + length / unit, of_posteriors + own / unit
            squares.append(square / unit)
        return of_means, of_posteriors, torch.cat(squares)
