"""What tells one fitted embedder from another.

Inputs of any kind -> what a search needs to know of each: mean, trace, head inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from laplace_metric._utils.files import digest
from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import EmptyLoaderError, InputError, NonFiniteError
from laplace_metric.laplace import Traces, traced, traces_of
from laplace_metric.models import labels_of

if TYPE_CHECKING:
    from laplace_metric.embedder import LaplaceEmbedder


def identity(embedder: LaplaceEmbedder) -> str:
    """sha256 of what decides uncertainties and distances, the backbone left out."""
    posterior = embedder.posterior_
    settings = f"{embedder.spherical} {embedder.settings.structure}"
    return digest(settings, (posterior.mean, posterior.spectrum))


BATCH = 256
"""Rows of one array, or texts of one list, that enter the model at once."""


@dataclass(frozen=True)
class Encoded:
    """N uncertain embeddings, as small as search allows.

    Parameters
    ----------
    mean : Tensor [N, Z]
        The embedding to search with (unit length on the sphere).
    trace : Tensor [N]
        Of its covariance: ``Embedding.uncertainty``.
    words : Tensor [N, D]
        Of what entered the head: with them, distances know that both embeddings share their
        weights (``PairDistances.words``).
    """

    mean: Tensor
    trace: Tensor
    words: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, index: Any) -> Encoded:
        """Those at ``index``."""
        return Encoded(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Encoded]) -> Encoded:
        """One behind the other."""
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


class Encoder:
    """Encodes one batch after the other; what does not depend on the batch is computed once."""

    def __init__(self, embedder: LaplaceEmbedder, words: Callable[[Tensor], Tensor]) -> None:
        self.embedder, self.words, self.spherical = embedder, words, embedder.spherical
        fitted = embedder.fitted_
        self._traces: Traces = traces_of(fitted.jacobian, embedder.posterior_)

    def __call__(self, inputs: Any) -> Encoded:
        """One batch."""
        seen = self.embedder.activations(inputs)
        _require_finite(seen.raw)
        if self.spherical:
            _require_direction(seen.raw)
        with full_precision():
            mean = nn.functional.normalize(seen.raw, dim=-1) if self.spherical else seen.raw
            trace = traced(self._traces, seen.features, seen.raw, spherical=self.spherical)
            return Encoded(mean, trace, self.words(seen.features))

    def all(self, name: str, inputs: Any, *, progress: bool) -> tuple[Encoded, list[Any]]:
        """Everything that ``inputs`` holds, and the labels [n] of each batch that came with any."""
        parts, labels = [], []
        bar = {"desc": "Embedding", "total": _count(inputs), "disable": not progress}
        for batch, batch_labels in tqdm(batches(name, inputs), **bar):
            parts.append(self(batch))
            labels += [] if batch_labels is None else [batch_labels]
        if not parts:
            raise EmptyLoaderError(f"{name} holds nothing: pass at least one item.")
        return Encoded.concatenate(parts), labels


def batches(name: str, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """``(inputs, labels or None)`` from an array, a list of texts, a mapping or a loader."""
    if isinstance(inputs, np.ndarray):
        inputs = inputs.tolist() if inputs.dtype.kind in "UO" else torch.as_tensor(inputs)
    if isinstance(inputs, Tensor) or _texts(inputs):
        yield from ((inputs[i : i + BATCH], None) for i in range(0, len(inputs), BATCH))
    elif isinstance(inputs, Mapping):
        yield inputs, None
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str):
        yield from (labels_of(batch) for batch in inputs)
    else:
        raise InputError(
            f"{name} is a {type(inputs).__name__}: pass an array, a list of texts, a mapping of "
            "tensors, or a loader of batches."
        )


def _count(inputs: Any) -> int | None:
    """How many batches there will be, where that is known."""
    if isinstance(inputs, (Tensor, np.ndarray)) or _texts(inputs):
        return -(-len(inputs) // BATCH)
    return len(inputs) if isinstance(inputs, Sized) and not isinstance(inputs, Mapping) else None


def _texts(inputs: Any) -> bool:
    return isinstance(inputs, (list, tuple)) and all(isinstance(x, str) for x in inputs)


def _require_finite(raw: Tensor) -> None:
    bad = int((~torch.isfinite(raw)).any(1).sum())
    if bad:
        raise NonFiniteError(f"{bad} of {len(raw)} embeddings of a batch hold NaN or infinity.")


def _require_direction(raw: Tensor) -> None:
    zero = int((raw.norm(dim=1) == 0).sum())
    if zero:
        raise InputError(
            f"{zero} of {len(raw)} embeddings of a batch are all zeros, which have no direction: "
            "leave those inputs out."
        )
