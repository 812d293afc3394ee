"""Requirements of an index: a fitted model, and encoders of its items and its queries."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32, full_precision
from laplace_metric._utils.progress import ItemBar
from laplace_metric._utils.validation import DTYPES, as_array, as_tensor, check_dense
from laplace_metric.errors import EmptyLoaderError, InputError
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from laplace_metric.heads._capture import capture
from laplace_metric.heads._fitted_weights import FittedWeights
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.io import digest
from laplace_metric.laplace import Fitted
from laplace_metric.laplace._traces import traced, traces_of
from laplace_metric.models._calling import device_of, labels_of, to_device
from laplace_metric.models._reading import as_batches, dense, is_rows, items_of
from laplace_metric.models._rows import rows_before
from laplace_metric.models._store import Fingerprints, row_fingerprints
from laplace_metric.models._texts import gathered_texts, grouped_texts
from laplace_metric.search._columns import Encoded, joined
from laplace_metric.search._neighbours import RANKINGS
from laplace_metric.search._pair_distances import PairDistances, PairMoments
from laplace_metric.search._round_errors import RoundErrors


class FittedEmbedder(Protocol):
    """A model and the posterior over its head: what a search needs of ``LaplaceEmbedder``."""

    @property
    def model(self) -> nn.Module:
        """Inputs -> [B, Z]."""

    @property
    def fitted_(self) -> Fitted:
        """Head and posterior."""


class SearchEncoder(Protocol):
    """Inputs of one kind as an index knows them.

    An index has one for its items and one for its queries, which may be the same.
    """

    @property
    def pairs(self) -> PairMoments:
        """Distances between queries and items."""

    @property
    def identity(self) -> str:
        """Identity of what decides distances and uncertainties; another one is refused."""

    @property
    def spherical(self) -> bool:
        """True if covariances are of tangents of the sphere, not of the space around it."""

    @property
    def fitted_rows(self) -> Fingerprints | None:
        """Sorted fingerprints of the inputs of the fit: such queries are warned of."""

    @property
    def rankings(self) -> tuple[str, ...]:
        """Rankings that are available, of ``RANKINGS``."""

    def all(
        self,
        name: str,
        inputs: Any,
        *,
        progress: bool,
        rows: list[Fingerprints] | None = None,
    ) -> tuple[Encoded, list[Any]]:
        """Encode all that ``inputs`` holds, and the labels of batches that came with any."""


Encoders = tuple[SearchEncoder, SearchEncoder]
"""Of items, and of queries."""


class SearchableEmbedder(Protocol):
    """With encoders of its own, of items and of queries."""

    def search_encoders(self) -> Sequence[Encoders]:
        """Each pair that there is."""


# Inputs of any kind -> what a search needs to know of each: mean, trace, head inputs.


BATCH = 256
"""Rows of one array, or texts of one list, that enter the model at once."""


def encoders_of(embedder: FittedEmbedder | SearchableEmbedder) -> Sequence[Encoders]:
    """Pairs of encoders, of items and of queries; of a ``LaplaceEmbedder`` one, whole or compact.

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


class Encoder:
    """A model with a posterior, as it is now; what does not depend on inputs is computed once.

    Parameters
    ----------
    model : nn.Module
    fitted : Fitted
        Of its head.

    Attributes
    ----------
    pairs : PairMoments
        Between what it has encoded.
    identity : str
        sha256 of what decides uncertainties and distances, the model before the head left out.
    fitted_rows : uint64 [N] or None
        Fingerprints of the head's inputs that the posterior was fitted to.
    """

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        self.model, self.head, self.spherical = model, fitted.head, fitted.spherical
        shared = PairDistances(fitted, spherical=fitted.spherical)
        self.pairs: PairMoments = shared
        self.rankings: tuple[str, ...] = RANKINGS
        self._kept = shared.basis_inputs
        weights = fitted.posterior.mean, fitted.posterior.spectrum
        self.identity = digest(f"{fitted.spherical} {fitted.structure}", weights)
        self.fitted_rows = fitted.fingerprints
        self._weights = FittedWeights(model, fitted.head, fitted.posterior.mean, fitted.body)
        self._weights.check(values=True)
        self._traces = traces_of(fitted.jacobian, fitted.posterior)
        self._near_far = fitted.near_far

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
        return encoder.compacted() if compact else encoder

    def compacted(self) -> Encoder:
        """Return the same encoder, which keeps nothing of head inputs (see ``_round_errors``)."""
        other = copy.copy(self)
        other.pairs, other.rankings = RoundErrors(spherical=self.spherical), ("mean", "expected")
        other.identity, other._kept = digest(f"compact {self.identity}", ()), _nothing
        return other

    def without_epistemic(self) -> Encoder:
        """Copy that gives the trace in place of epistemic numbers, as of a fit without them."""
        other = copy.copy(self)
        other._near_far = None
        return other

    def __call__(self, inputs: Any, rows: list[Fingerprints] | None = None) -> Encoded:
        """Encode one batch; ``rows`` gets the fingerprints of what enters the head.

        Raises
        ------
        NonFiniteError
            For embeddings or uncertainties with NaN or infinity.
        InputError
            On the sphere, for embeddings without a direction.
        WeightsChangedError
            If the head no longer has the weights of the fit.
        """
        self._weights.check()
        captured = capture(self.model, self.head, to_device(inputs, device_of(self.model)))
        h, z = (at_least_float32(x.detach()) for x in (captured.features, captured.raw))
        if rows is not None:
            rows.append(row_fingerprints(h))
        with full_precision():
            mean = nn.functional.normalize(z, dim=-1) if self.spherical else z
            trace = traced(self._traces, h, z, spherical=self.spherical)
            check_rows(z, trace, spherical=self.spherical)
            return Encoded(mean, trace, self._epistemic(h, trace), self._kept(h))

    def _epistemic(self, h: Tensor, trace: Tensor) -> Tensor:
        if self._near_far is None:
            return trace
        enters = (h != 0).any(1)
        epistemic = torch.full_like(trace, NOTHING_ENTERS)
        epistemic[enters] = self._near_far.epistemic(h[enters]).to(trace)
        return epistemic

    def all(
        self,
        name: str,
        inputs: Any,
        *,
        progress: bool,
        rows: list[Fingerprints] | None = None,
    ) -> tuple[Encoded, list[Any]]:
        """Encode all that ``inputs`` holds, and the labels [n] of each batch that came with any.

        ``rows`` gets the fingerprints of each batch.

        Raises
        ------
        EmptyLoaderError
            If it holds nothing.
        """
        inputs, labels = readable(name, inputs), list[Any]()
        bar = None
        if progress:  # a bar that is not shown costs a search time, too
            n_items = len(inputs) if _has_rows(inputs) else items_of(inputs)
            bar = ItemBar("Embedding", n_items, count_of_batches(inputs))

        def parts() -> Iterator[Encoded]:
            n_read = 0
            for batch, batch_labels in batches(name, inputs):
                with rows_before(n_read):
                    part = self(batch, rows)
                n_read += len(part)
                labels.extend([] if batch_labels is None else [batch_labels])
                if bar is not None:
                    bar.advance(len(part))
                yield part

        with bar or nullcontext():
            encoded = joined(parts())
        if encoded is None:
            raise EmptyLoaderError(f"{name} holds nothing: pass at least one item.")
        return encoded, labels


def batches(name: str, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """``(inputs, labels or None)`` from an array, a list of texts, a mapping or a loader.

    Raises
    ------
    InputError
        For anything else.
    """
    inputs = readable(name, inputs)
    if isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 1:
        yield _rows(name, inputs), None  # one item, or a number for each: the model says which
    elif _has_rows(inputs):
        starts = range(0, len(inputs), BATCH)
        yield from ((_rows(name, inputs[i : i + BATCH]), None) for i in starts)
    elif isinstance(inputs, Mapping):
        yield labels_of(inputs)
    else:
        yield from (labels_of(batch) for batch in _iterated(name, inputs))


def _iterated(name: str, inputs: Any) -> Iterator[Any]:
    try:
        entries = iter(inputs)
    except TypeError as error:
        raise InputError(
            f"{name} is a {type(inputs).__name__}: pass an array, a list of texts, a mapping of "
            "tensors, or a loader of batches."
        ) from error
    return grouped_texts(name, entries)


def readable(name: str, inputs: Any) -> Any:
    """Return inputs whose rows can be counted and taken: texts as a list, frames as arrays."""
    if isinstance(inputs, Tensor) and inputs.ndim:
        return check_dense(name, inputs)
    inputs = dense(name, gathered_texts(name, inputs))
    inputs = as_array(name, inputs) if is_rows(inputs) else inputs
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "O":
        inputs = inputs.tolist()
    if isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 0:
        raise InputError(f"{name} is a single number: pass an array of items.")
    return as_batches(inputs)


def _rows(name: str, array: Any) -> Any:
    """Some rows as a tensor of their type; few at a time, the array may be a memory map.

    Of float64, NumPy's and pandas' own choice, they stay an array: the model's weights say which
    type they get (``models.call_model``).
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype == np.float64:
        return np.array(array)
    rows = as_tensor(name, array)
    same = getattr(torch, array.dtype.name, None)  # whole numbers have become int64
    return rows.to(same) if array.dtype.name in DTYPES else rows


def _nothing(h: Tensor) -> Tensor:
    return h.new_empty(len(h), 0)


def count_of_batches(inputs: Any) -> int | None:
    """Return how many batches there will be, where that is known."""
    inputs = readable("inputs", inputs)
    if _has_rows(inputs):
        return -(-len(inputs) // BATCH)
    return len(inputs) if isinstance(inputs, Sized) and not isinstance(inputs, Mapping) else None


def _has_rows(inputs: Any) -> bool:
    """Return whether inputs are an array or texts, rather than a loader of batches."""
    if isinstance(inputs, (list, tuple)):
        return all(isinstance(x, str) for x in inputs)
    return isinstance(inputs, (Tensor, np.ndarray))
