"""Columns as a data frame, where pandas is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from laplace_metric.errors import MissingPackageError

if TYPE_CHECKING:
    import pandas


def as_pandas(columns: dict[str, np.ndarray[Any, Any]]) -> pandas.DataFrame:
    """A table of them.

    Raises
    ------
    MissingPackageError
        Without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        install = "pip install pandas"
        raise MissingPackageError("pandas", "to_pandas()", install) from error
    return pandas.DataFrame(columns)
