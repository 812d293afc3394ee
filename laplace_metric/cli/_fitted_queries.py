"""Refusal of queries that were in the fit, unless --allow-fitted is given."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laplace_metric.cli._model_recipe import REMEDY
from laplace_metric.cli._reporter import Reporter
from laplace_metric.errors import DependentQueriesWarning, FittedQueriesWarning, InputError


@contextmanager
def without_fitted(path: Path, options: Namespace, reporter: Reporter) -> Iterator[None]:
    """Turn warnings into notes; queries of the fit, in any file, need --allow-fitted.

    Raises
    ------
    InputError
        For queries that were in the fit.
    """
    try:
        with reporter.warnings(None if options.allow_fitted else FittedQueriesWarning):
            warnings.simplefilter("always", DependentQueriesWarning)  # they were in no fit: a note
            yield
    except FittedQueriesWarning as warning:
        raise InputError(f"{path}: {warning} {REMEDY}") from warning
