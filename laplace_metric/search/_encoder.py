"""Encode inputs as a search needs them: mean, trace, epistemic number, head inputs.

``BatchEncoder``: encode everything that a caller passed, batch by batch.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.progress import ItemBar
from laplace_metric.errors import EmptyLoaderError, InputError
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from laplace_metric.heads._capture import SeenInputs, capture
from laplace_metric.heads._fitted_weights import FittedWeights
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.inputs import Inputs, ModelInput, check_no_texts, read_inputs
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.inputs._shown import shown
from laplace_metric.io import digest
from laplace_metric.laplace import Fitted
from laplace_metric.laplace._earlier_layer import EarlierLayer
from laplace_metric.laplace._predictive_vectors import PredictiveVectors
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.models import Precomputed
from laplace_metric.models._call_model import to_device
from laplace_metric.models._fingerprints import Fingerprints, in_fit, row_fingerprints
from laplace_metric.models._modules import device_of
from laplace_metric.search._encoded import Encoded, joined
from laplace_metric.search._pair_distances import PairDistances, PairMoments, RoundErrors
from laplace_metric.search._protocols import (
    Encoders,
    FittedEmbedder,
    LastLayerAlone,
    Refitted,
    SearchableEmbedder,
    VectorMap,
)
from laplace_metric.search._refit import Refits, RefittableEmbedder

MOSTLY_NEW = 0.1
"""Share of items of the fit, up to which its curvature says of all what it says of new ones."""


class BatchEncoder(LastLayerAlone, ABC):
    """Encoder of batches, and of all inputs that ``read`` returned."""

    @abstractmethod
    def __call__(self, inputs: ModelInput, rows: list[Fingerprints] | None = None) -> Encoded:
        """Encode one batch; ``rows`` gets the fingerprints of what enters the head."""

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read what a caller passed: arrays, texts, mappings or loaders."""
        return read_inputs(name, data, labels)

    def all(
        self, inputs: Inputs, *, progress: bool, rows: list[Fingerprints] | None = None
    ) -> tuple[Encoded, list[Any]]:
        """Encode all inputs, and return the labels [n] of each batch that came with any.

        Parameters
        ----------
        inputs : Inputs
            Inputs that ``read`` returned.
        progress : bool
            Show a progress bar.
        rows : list or None
            List to which the fingerprints of each batch are appended.

        Raises
        ------
        EmptyLoaderError
            If there are none.
        """
        labels, bar = list[Any](), None
        if progress:  # a bar that is not shown costs a search time, too
            bar = ItemBar("Embedding", inputs.count, inputs.n_batches)

        def parts() -> Iterator[Encoded]:
            n_read = 0
            for batch in inputs:
                with rows_before(n_read):
                    part = self(batch.inputs, rows)
                n_read += len(part)
                labels.extend([] if batch.labels is None else [batch.labels])
                if bar is not None:
                    bar.advance(len(part))
                yield part

        with bar or nullcontext():
            encoded = joined(parts(), inputs.count)
        if encoded is None:
            raise EmptyLoaderError(f"{inputs.name} holds nothing: pass at least one item.")
        return encoded, labels


def encoders_of(embedder: FittedEmbedder | SearchableEmbedder) -> Sequence[Encoders]:
    """Return pairs of encoders, of items and of queries; ``LaplaceEmbedder`` has two, one compact.

    Raises
    ------
    InputError
        For anything else.
    """
    if hasattr(type(embedder), "search_encoders"):
        return embedder.search_encoders()  # type: ignore[union-attr]
    encoder = Encoder.of(embedder)  # type: ignore[arg-type]
    compact = encoder.compacted()
    return [(encoder, encoder), (compact, compact)]


class Encoder(BatchEncoder):
    """A model with a posterior, as it is now; what does not depend on inputs is computed once.

    Parameters
    ----------
    model : nn.Module
        Model that turns inputs into embeddings.
    fitted : Fitted
        Head of the model and its posterior.

    Attributes
    ----------
    pairs : PairMoments
        Distances between encoded queries and items.
    identity : str
        Digest (sha256) of all that decides uncertainties and distances, except the model before the
        head.
    fitted_rows : uint64 [N] or None
        Fingerprints of the head's inputs that the posterior was fitted to.
    n_kept : int
        Number of columns of ``Encoded.basis_inputs``.
    """

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        self.model, self.head, self.spherical = model, fitted.head, fitted.spherical
        shared = PairDistances(fitted, spherical=fitted.spherical)
        self.pairs: PairMoments = shared
        linear = shared.in_basis and fitted.jacobian.linear
        self.predictive: VectorMap | None = PredictiveVectors.of(fitted) if linear else None
        self.rankings: tuple[str, ...] = ("mean", "expected", "shared")
        if linear:
            self.rankings += ("predictive",)
        self._kept = shared.basis_inputs
        layout = fitted.jacobian.layouts[0]
        self.n_kept = layout.n_columns if shared.in_basis else layout.n_features
        weights = fitted.posterior.mean, fitted.posterior.spectrum
        compared = f" {fitted.predictive_prior}" if linear and fitted.predictive_prior else ""
        self.identity = digest(f"{fitted.spherical} {fitted.structure}{compared}", weights)
        self.fitted_rows = fitted.fingerprints
        self._weights = FittedWeights(model, fitted.head, fitted.posterior.mean, fitted.body)
        self._weights.check(values=True)
        self._traces = traces_of(fitted.jacobian, fitted.posterior)
        self._near_far = fitted.near_far
        self._refittable: RefittableEmbedder | None = None
        self._read: _ReadLayers | None = None
        self._layer: EarlierLayer | None = None

    @classmethod
    def of(cls, embedder: FittedEmbedder, *, compact: bool = False) -> Encoder:
        """Build from a ``LaplaceEmbedder``, or anything that has what a search needs.

        Raises
        ------
        InputError
            For anything else.
        """
        if hasattr(type(embedder), "search_encoders"):
            raise InputError(
                f"embedder is an {type(embedder).__name__}, which has two sides: call its "
                "index_images, or index_texts."
            )
        named = hasattr(type(embedder), "fitted_") or "fitted_" in getattr(embedder, "__dict__", {})
        if not named:
            raise InputError(f"embedder is a {type(embedder).__name__}: pass a LaplaceEmbedder.")
        encoder = cls(embedder.model, embedder.fitted_)
        if hasattr(embedder, "settings"):
            encoder._refittable = cast("RefittableEmbedder", embedder)
        return encoder.compacted() if compact else encoder

    def compacted(self) -> Encoder:
        """Return the same encoder, which keeps nothing of head inputs (see ``_pair_distances``)."""
        other = copy.copy(self)
        other.pairs, other.rankings = RoundErrors(spherical=self.spherical), ("mean", "expected")
        other.predictive, other.n_kept = None, 0
        other.identity, other._kept = digest(f"compact {self.identity}", ()), _nothing
        return other

    def refitted(
        self,
        items: Float[Tensor, "n A"],
        codes: Int[Tensor, " n"],
        others: Float[Tensor, "m A"],
    ) -> Refitted | None:
        """Return the map of a fit to some items, and others as it sees them; see the protocol."""
        vectors, embedder = self.predictive, self._refittable
        if embedder is None or not isinstance(vectors, PredictiveVectors):
            return None
        h, asked = vectors.head_inputs(items), vectors.head_inputs(others)
        known = self.fitted_rows
        if known is None or in_fit(known, row_fingerprints(asked)).mean() <= MOSTLY_NEW:
            return None
        refits = Refits.of(embedder, h, reduce=False)
        own = PredictiveVectors.of(refits.fit(None, codes, near_far=False).fitted_)
        return Refitted(own, own.seen(asked))

    def read(self, name: str, data: Any, labels: Any = None) -> Inputs:
        """Read what a caller passed.

        Raises
        ------
        InputError
            For texts where vectors were fitted; and as ``read_inputs``.
        """
        if isinstance(self.model, Precomputed):
            check_no_texts(name, data, self.model.size)
        return super().read(name, data, labels)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return device_of(self.model)

    @property
    def earlier(self) -> Mapping[str, slice]:
        """Columns of ``Encoded.earlier`` of each layer that is read; the last layer first."""
        return {} if self._read is None else self._read.columns

    def exploring(self, names: Sequence[str] | None = None) -> Encoder:
        """Return the encoder that also reads the inputs of earlier layers; see the protocol."""
        if self.predictive is None:
            return self
        other = copy.copy(self)
        other._read, other._layer = _ReadLayers(names), None
        return other

    def with_layer(self, layer: EarlierLayer | None) -> Encoder:
        """Return the encoder that also gives the unit vectors of one layer; None: of none.

        Raises
        ------
        InputError
            If the model has no such layer.
        """
        if layer is self._layer and self._read is None:
            return self
        other = copy.copy(self)
        other._read = None if layer is None else _ReadLayers([layer.name])
        other._layer = layer
        return other

    @property
    def fitted_classes(self) -> int | None:
        """Number of classes of the fit that epistemic numbers know; None without these."""
        return None if self._near_far is None else len(self._near_far.class_means) or None

    def without_epistemic(self) -> Encoder:
        """Copy that gives the trace in place of epistemic numbers, as of a fit without them."""
        other = copy.copy(self)
        other._near_far = None
        return other

    def __call__(self, inputs: ModelInput, rows: list[Fingerprints] | None = None) -> Encoded:
        """Encode one batch; ``rows`` gets the fingerprints of what enters the head.

        Raises
        ------
        NonFiniteError
            For embeddings or uncertainties with NaN or infinity.
        InputError
            On the sphere, for embeddings without a direction.
        WeightsChangedError
            If the model no longer has the weights of the fit, in its head or before it.
        """
        self._weights.check()
        inputs = to_device(inputs, device_of(self.model))
        names = () if self._read is None else self._read.names(self.model, self.head, inputs)
        captured = capture(self.model, self.head, inputs, names)
        h, z = (at_least_float32(x.detach()) for x in (captured.features, captured.raw))
        if rows is not None:
            rows.append(row_fingerprints(h))
        with full_precision():
            mean, kept = self.rows_of(captured)
            trace = traced(self._traces, h, z, spherical=self.spherical)
            check_rows(z, trace, spherical=self.spherical)
            epistemic, earlier = self._epistemic(h, trace), self._earlier(captured)
            return Encoded(mean, trace, epistemic, kept, earlier)

    @full_precision()
    def rows_of(self, captured: HeadActivations) -> tuple[Tensor, Tensor]:
        """Return ``mean`` [n, Z] and ``basis_inputs`` [n, A] of one batch."""
        h, z = (at_least_float32(x.detach()) for x in (captured.features, captured.raw))
        return nn.functional.normalize(z, dim=-1) if self.spherical else z, self._kept(h)

    def _earlier(self, captured: HeadActivations) -> Tensor | None:
        if self._read is None:
            return None
        rows = self._read.joined(captured)
        return rows if self._layer is None or rows is None else self._layer(rows)

    def _epistemic(self, h: Tensor, trace: Tensor) -> Tensor:
        if self._near_far is None:
            return trace
        enters = (h != 0).any(1)
        if bool(enters.all()):
            return self._near_far.epistemic(h).to(trace)
        epistemic = torch.full_like(trace, NOTHING_ENTERS)
        epistemic[enters] = self._near_far.epistemic(h[enters]).to(trace)
        return epistemic


class _ReadLayers:
    """Earlier layers that an encoder reads: those that are named, or found in the first batch."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else tuple(names)
        self.columns: dict[str, slice] = {}

    def names(
        self, model: nn.Module, head: LocatedHead, inputs: ModelInput
    ) -> tuple[str, ...] | None:
        """Return the names of the layers; None: they are to be found in this batch.

        Raises
        ------
        InputError
            For a name that the model, or what was seen of it, does not have.
        """
        if self._names is not None and not self.columns:  # once: models have many modules
            seen = inputs.at(head.name).earlier if isinstance(inputs, SeenInputs) else None
            known = dict(model.named_modules()) if seen is None else seen
            for name in self._names:
                if name not in known or not name:
                    raise InputError(
                        f"layer={name!r} is no layer of the model: pass one of "
                        f"{', '.join(repr(other) for other in known if other)}."
                    )
        return self._names

    def joined(self, captured: HeadActivations) -> Float[Tensor, "B E"] | None:
        """Return the rows of all layers side by side; None without layers.

        Raises
        ------
        InputError
            For rows of another form than those of the first batch.
        """
        rows, columns, start = [], dict[str, slice](), 0
        if self._names is None:
            self._names = tuple(captured.earlier)
        for name in self._names:
            x = captured.earlier.get(name)
            if x is None or len(x) != len(captured.features):
                given = "nothing that is one row for each input" if x is None else shown(x)
                raise InputError(
                    f"layer {name!r} was given {given}, for {len(captured.features)} inputs: name "
                    "another layer, or pass rank_by=Predictive(layer=False)."
                )
            rows.append(at_least_float32(x.detach()))
            columns[name] = slice(start, start + x.shape[1])
            start += x.shape[1]
        if self.columns and columns != self.columns:
            raise InputError(
                f"layers {', '.join(map(repr, columns))} have other widths than in the first "
                "batch: pass inputs of one size, or rank_by=Predictive(layer=False)."
            )
        self.columns = columns
        return torch.cat(rows, 1) if rows else None


def _nothing(h: Tensor) -> Tensor:
    return h.new_empty(len(h), 0)
