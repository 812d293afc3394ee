"""``Column``: ids or labels, one whole number or one string for each item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplace_metric._utils.validation import as_array, check_dense
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.inputs._arrays import plain
from laplace_metric.inputs._class_names import check_names, mixed_kinds
from laplace_metric.inputs._missing import check_missing, missing_rows
from laplace_metric.inputs._no_data import check_not_tags
from laplace_metric.inputs._not_classes import IS_A_CLASS, NOISE, check_noise
from laplace_metric.inputs._rows_in_errors import row_list
from laplace_metric.io import checked_array

Values = npt.NDArray[Any]
"""[N] int64, or objects that are strings: NumPy's own drop NUL at the end, and pad all of them to
the longest."""
LARGEST = 2**63 - 1
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SURROGATES = "surrogatepass"
"""Names of files that are not UTF-8 hold lone surrogates."""


@dataclass(frozen=True)
class Column:
    """One whole number or one string an item, kept in that type.

    Examples
    --------
    >>> Column.of("labels", ["cat", "dog", "cat"]).codes_of(["dog", "bird"]).tolist()
    [1, -1]
    """

    values: Values

    @classmethod
    def of(cls, name: str, values: Any, length: int | None = None) -> Column:
        """Checked entries.

        Raises
        ------
        InputError
            Unless each is a whole number or each a string, and there are ``length`` of them.
        """
        array = _array(name, values)
        if length is not None and len(array) != length:
            raise InputError(
                f"{name} has {len(array)} entries for {length} items: pass one for each."
            )
        return cls(array)

    @classmethod
    def of_labels(
        cls,
        values: Any,
        length: int | None = None,
        known: Column | None = None,
        otherwise: str = IS_A_CLASS,
    ) -> Column:
        """Checked classes, none of them missing or without a name.

        Parameters
        ----------
        values : [N] whole numbers or strings
            Classes of the items, as the caller gave them.
        length : int or None
            Number of items; None: any.
        known : Column or None
            Labels of the index; where -1 is one of them, it is a class here, too.
        otherwise : str
            End of the message about -1 (``check_noise``): what to do if it marks no noise.

        Raises
        ------
        InputError
            As ``of``.
        LabelError
            For labels that are missing, an empty text, and scikit-learn's mark of noise.
        """
        check_not_tags("labels", values)
        check_missing("labels", values)
        column = cls.of("labels", values, length)
        if not column.is_text and (known is None or not (known.values == NOISE).any()):
            classes = None if known is None else known.values
            check_noise("labels", column.values, otherwise, classes)
        if column.is_text:
            check_names("labels", column.values.tolist())
        return column

    @property
    def is_text(self) -> bool:
        """True if the entries are strings."""
        return self.values.dtype == object

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Any) -> Column:
        """Return the entries at ``index``, in its shape."""
        return Column(self.values[index])

    def joined(self, name: str, other: Column) -> Column:
        """Return the entries with those of ``other``, of the same type, behind them."""
        self.check_like(name, other)
        return Column(np.concatenate([self.values, other.values]))

    def check_like(self, name: str, other: Column) -> None:
        """Refuse ``other`` if one has numbers and the other strings.

        Raises
        ------
        InputError
            Then.
        """
        if self.is_text != other.is_text:
            kinds = ["strings" if c.is_text else "numbers" for c in (self, other)]
            raise InputError(
                f"{name} are {kinds[0]} in the index and {kinds[1]} here: "
                f"pass {kinds[0]} ({name}=)."
            )

    def duplicates(self) -> list[Any]:
        """Return the entries that stand more than once."""
        unique, counts = np.unique(self.values, return_counts=True)
        return unique[counts > 1].tolist()

    def codes_of(self, values: Any) -> npt.NDArray[np.int64]:
        """Return the place of each value among the sorted unique entries; -1 where it is none."""
        unique, column = np.unique(self.values), Column.of("values", values)
        if column.is_text != self.is_text:
            return np.full(len(column), -1)
        codes = np.searchsorted(unique, column.values).clip(max=len(unique) - 1)
        return np.where(unique[codes] == column.values, codes, -1)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the entries as tensors: numbers, or the bytes of all strings and their ends."""
        if not self.is_text:
            return {name: torch.from_numpy(self.values)}
        encoded = [value.encode(errors=SURROGATES) for value in self.values]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8).copy()
        return {f"{name}.text": torch.from_numpy(text), f"{name}.ends": torch.from_numpy(ends)}

    @classmethod
    def from_tensors(cls, name: str, tensors: dict[str, Tensor]) -> Column | None:
        """Read the result of ``tensors``; None if there is nothing of that name.

        Raises
        ------
        FileFormatError
            For entries of another type or shape, and ends that do not cut the text.
        """
        if name in tensors:
            return cls(checked_array(name, tensors[name], [None], dtype="int64").numpy())
        if f"{name}.text" not in tensors:
            return None
        whole, stops = (tensors.get(f"{name}.{part}") for part in ("text", "ends"))
        text = checked_array(f"{name}.text", whole, [None], dtype="uint8").numpy().tobytes()
        ends = checked_array(f"{name}.ends", stops, [None], dtype="int64").tolist()
        starts = [0, *ends[:-1]]
        if any(a > b for a, b in zip(starts, ends, strict=True)) or [0, *ends][-1] != len(text):
            raise FileFormatError(f"{name}.ends do not cut the {len(text)} bytes of {name}.text")
        spans = zip(starts, ends, strict=True)
        return cls(_objects([text[a:b].decode(errors=SURROGATES) for a, b in spans]))


def _array(name: str, values: Any) -> Values:
    values, whole = plain(values), False
    if isinstance(values, Tensor):
        if values.dtype not in UNSIGNED:
            check_dense(name, values)
        if values.is_floating_point():  # NumPy has no bfloat16
            raise InputError(f"{name} are {values.dtype}: pass whole numbers, one for each item.")
        values = values.detach().cpu().resolve_neg().numpy()
    elif not isinstance(values, np.ndarray):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(f"{name} is a {type(values).__name__}: pass a list or an array.")
        whole = len(values) > 0 and all(type(value) is int for value in values)
        if whole or any(isinstance(value, str) for value in values):
            values = _objects(values)  # NumPy makes floats of numbers beyond int64
    array = as_array(name, values)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}: pass one entry for each item.")
    if whole or array.dtype.kind in "iu":
        outside = (array > LARGEST) | (array < -LARGEST - 1)
        if outside.any():
            raise InputError(
                f"{name} hold {outside.sum()} numbers that int64 cannot, {array[outside][0]} the "
                "first: pass them as strings."
            )
        return array.astype(np.int64)
    if array.dtype.kind == "U" or all(isinstance(value, str) for value in array):
        return _objects([str(value) for value in array])
    wrong = f"{name} are {array.dtype}"
    if missing := missing_rows(array):
        wrong = f"{name} are missing in {row_list(missing)} ({len(missing)} of {len(array)})"
    elif mixed := mixed_kinds(array):
        wrong = f"{name} are {mixed}"
    raise InputError(f"{wrong}: pass whole numbers or strings, one for each item.")


def _objects(values: Sequence[Any]) -> Values:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
