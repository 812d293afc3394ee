"""Items as an engine keeps them: vectors, labels, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from laplace_metric import Embedding
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, NonFiniteError, NotFittedError
from laplace_metric.search import Index
from laplace_metric.search._expected_vectors import gallery_vectors, moments

Array = npt.NDArray[Any]
RANKINGS = ("mean", "expected")


@dataclass(frozen=True)
class StoredItems:
    """N items as an engine keeps them.

    Parameters
    ----------
    ids : [N] int64
        Different ones, from 0.
    vectors : [N, d] float32
        Mean embeddings, or with the one coordinate more to rank by expected distance.
    labels : [N] whole numbers or strings
    epistemic : [N]
    spread : [N]
        The coordinate ``s`` of ``laplace_metric.search._expected_vectors``; the squared deviation
        of an item from its mean is ``s^2``.

    Raises
    ------
    InputError
        For other shapes, ids that occur twice, labels that are neither.
    NonFiniteError
        For NaN and infinity.
    """

    ids: Array
    vectors: Array
    labels: Array
    epistemic: Array
    spread: Array

    def __post_init__(self) -> None:
        for name in ("ids", "labels", "epistemic", "spread"):
            if getattr(self, name).shape != (len(self.vectors),):
                shape = getattr(self, name).shape
                raise InputError(f"{name} has shape {shape}: pass one an item, {len(self)}.")
        for name in ("vectors", "epistemic", "spread"):
            if not np.isfinite(getattr(self, name)).all():
                raise NonFiniteError(f"{name} holds NaN or infinity: check those items.")
        if self.ids.dtype != np.int64 or len(np.unique(self.ids)) != len(self):
            raise InputError("ids are no different int64 numbers: pass one of its own an item.")
        if self.labels.dtype.kind not in "iuU":
            raise InputError(f"labels are {self.labels.dtype}: pass whole numbers or strings.")

    @classmethod
    def of(
        cls,
        embedding: Embedding,
        labels: Any,
        ids: Any = None,
        *,
        spherical: bool,
        rank_by: str = "mean",
    ) -> StoredItems:
        """Of embeddings [N, Z], as ``embedder.spherical`` says.

        Parameters
        ----------
        ids : [N] or None
            None: counted from 0.
        rank_by : "mean" | "expected"
            The distance that the engine computes, as for ``embedder.index``.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 4
        >>> e = LaplaceEmbedder.from_embeddings(x, y)(x)
        >>> StoredItems.of(e, y, spherical=True).vectors.shape
        (40, 3)
        >>> StoredItems.of(e, y, spherical=True, rank_by="expected").vectors.shape
        (40, 4)
        """
        numbers = np.arange(len(embedding)) if ids is None else np.asarray(ids)
        moments_of = embedding.mean, embedding.uncertainty
        how: dict[str, Any] = {"spherical": spherical, "rank_by": rank_by}
        return cls._from(numbers, labels, epistemic_of(embedding), *moments_of, **how)

    @classmethod
    def of_index(cls, index: Index) -> StoredItems:
        """The items of an index, ranked as it ranks them.

        Raises
        ------
        InputError
            For an index without labels, or whose ids are texts.
        """
        if index.labels is None:
            raise InputError("the index has no labels: build it with them.")
        encoded, rank_by = index.items.encoded, index.rank_by
        how: dict[str, Any] = {"spherical": index.encoder.spherical, "rank_by": rank_by}
        numbers = index.ids, index.labels, as_array(encoded.epistemic)
        return cls._from(*numbers, encoded.mean, encoded.trace, **how)

    @classmethod
    def _from(
        cls,
        ids: Any,
        labels: Any,
        epistemic: Array,
        mean: Tensor,
        trace: Tensor,
        *,
        spherical: bool,
        rank_by: str,
    ) -> StoredItems:
        vectors = mean
        if check_name("rank_by", rank_by, RANKINGS) == "expected":
            vectors = gallery_vectors(mean, trace, spherical=spherical)
        spread = as_array(moments(mean, trace, spherical=spherical)[1])
        named = np.asarray(labels)
        return cls(
            np.asarray(ids).astype(np.int64) if np.asarray(ids).dtype.kind in "iu" else ids,
            np.ascontiguousarray(as_array(vectors), np.float32),
            named.astype(str) if named.dtype == object else named,
            epistemic.astype(np.float64),
            spread.astype(np.float64),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    def batches(self, size: int) -> Iterator[StoredItems]:
        """In order, ``size`` at a time."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield StoredItems(*(value[part] for value in vars(self).values()))

    def rows(self) -> Iterator[tuple[int, int | str, float, float, Array]]:
        """``(id, label, epistemic, spread, vector [d])`` of each."""
        columns = (self.ids, self.labels, self.epistemic, self.spread)
        yield from zip(*(column.tolist() for column in columns), self.vectors, strict=True)


def epistemic_of(embedding: Embedding) -> Array:
    """[N], as an index has it: the uncertainty where the fit keeps nothing to compare with."""
    try:
        return as_array(embedding.epistemic)
    except NotFittedError:
        return as_array(embedding.uncertainty)


def as_array(values: Tensor) -> Array:
    """On the CPU, without gradients."""
    return values.detach().cpu().numpy()
