"""Recognise items that the model was trained on.

Warn of queries that were in the fit: the posterior is more certain of them than of new ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from laplace_metric.errors import FittedQueriesWarning, InputError, callers_line
from laplace_metric.laplace import Fitted
from laplace_metric.models._fingerprints import Fingerprints, in_fit
from laplace_metric.models._trained import input_fingerprints, trained_on
from laplace_metric.search._protocols import FittedEmbedder

TOLERATED = 0.01
"""Share of queries that may have been in the fit: most collections hold a few copies."""


def warn_if_fitted(known: Fingerprints | None, rows: Fingerprints) -> None:
    """Warn of queries that were in the fit, if that is known and they are more than a few.

    Warns
    -----
    FittedQueriesWarning
        With their share, and what to do.
    """
    if known is None or not len(rows):
        return
    count = int(in_fit(known, rows).sum())
    if count <= TOLERATED * len(rows):
        return
    warnings.warn(
        f"{count / len(rows):.0%} of the queries ({count:,} of {len(rows):,}) were in the fit of "
        "the posterior, which is surer of them than of anything new: probabilities, thresholds "
        "and what is measured here will not hold on new queries. Keep them out of the fit.",
        FittedQueriesWarning,
        stacklevel=callers_line(),
    )


def training_inputs(embedder: FittedEmbedder) -> Fingerprints | None:
    """Return what is known of the training of a model: by this process, or saved with the fit."""
    fitted: Fitted | None = getattr(embedder, "_fitted", None)
    saved = None if fitted is None else fitted.trained_on
    return trained_on(embedder.model) if saved is None else saved


def share_trained_on(embedder: FittedEmbedder, inputs: Sequence[Any]) -> float:
    """Return the share of inputs, in batches, that the model is known to have been trained on."""
    known = training_inputs(embedder)
    if known is None:
        return 0.0
    rows = np.concatenate([input_fingerprints(batch) for batch in inputs])
    return float(in_fit(known, rows).mean()) if len(rows) else 0.0


def check_untrained(embedder: FittedEmbedder, inputs: Sequence[Any]) -> None:
    """Refuse items, in batches, that this package has trained the model on.

    Raises
    ------
    InputError
        If they are more than ``TOLERATED``.
    """
    share = share_trained_on(embedder, inputs)
    if share > TOLERATED:
        raise InputError(
            f"the model was trained on {share:.0%} of the items (train_embedder and OnlineLaplace "
            "note what they train on), which it embeds better than anything new, so that they "
            "cannot calibrate it: hold queries out that it was not trained on, "
            "Guard(..., held_out=(queries, labels)), or index.calibrate(queries, labels)."
        )
