"""Classes with which scored queries are answered: that of the first hit of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from laplace_metric._utils.validation import as_array, is_tensor
from laplace_metric.calibration._array_namespace import Flags
from laplace_metric.calibration.labels._label_sets import Labels, codes_of
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import saved


@dataclass(frozen=True, eq=False)
class AnswerClasses:
    """Class of the first hit of each query.

    Parameters
    ----------
    classes : [C] whole numbers or strings
        Sorted labels of the first hits.
    codes : [n]
        Place in ``classes`` of that of each query; -1 of a query without a hit.
    """

    classes: Labels
    codes: Int[np.ndarray, " n"] = saved(least=-1)

    @classmethod
    def of(cls, names: Labels, exists: Flags) -> AnswerClasses:
        """Return the classes of queries by their names [n]; of those that have a hit [n]."""
        classes = np.unique(names[exists])
        return cls(classes, np.where(exists, codes_of(classes, names), -1))

    def take(self, rows: npt.NDArray[Any]) -> AnswerClasses:
        """Return those of some queries."""
        return AnswerClasses(self.classes, self.codes[rows])

    def check_saved(self) -> None:
        """Refuse classes of a file that are not sorted, and codes of none of them."""
        names = self.classes.tolist()
        if not names or names != sorted(set(names)) or self.codes.max(initial=-1) >= len(names):
            raise FileFormatError("scores.answers.classes are not the sorted classes of its codes")


def first_labels(labels: Any, n: int) -> Labels:
    """Return the label [n] of the first hit of each query, as whole numbers or strings.

    Parameters
    ----------
    labels : [n] or [n, k] whole numbers or strings
        Label of the first hit of each query, or of all hits; any one where there is no hit.
    n : int
        Number of queries.

    Raises
    ------
    InputError
        For another number of labels than of queries, and labels of another type.

    Examples
    --------
    >>> first_labels([["a", "b"], ["c", ""]], 2).tolist(), first_labels([3, 4], 2).tolist()
    (['a', 'c'], [3, 4])
    """
    array = as_array("labels", labels.detach().cpu().numpy() if is_tensor(labels) else labels)
    first = array[:, 0] if array.ndim == 2 and array.shape[1] else array
    if first.dtype == object and all(isinstance(name, str) for name in first.flat):
        first = first.astype(str)
    if first.shape != (n,) or first.dtype.kind not in "iuU":
        raise InputError(
            f"labels are {first.dtype} of shape {list(array.shape)}: pass a whole number or a "
            f"string for each of {n} queries, the label of its first hit, or [{n}, k]."
        )
    return first.astype(object if first.dtype.kind == "U" else np.int64)
