"""Where the numbers of a page come from: data, model, settings, versions, date."""

from __future__ import annotations

import platform
from argparse import Namespace
from datetime import datetime, timezone

import numpy as np
import torch

from laplace_metric._utils.version import __version__
from laplace_metric.cli._gallery import LoadedIndex
from laplace_metric.cli.report._words import percent
from laplace_metric.cli.sources import Source

DIGITS = 16
"""Of a hash; enough to tell data apart."""


def provenance(gallery: LoadedIndex, queries: Source, options: Namespace) -> dict[str, str]:
    """What to say of a page to repeat it, and to know what it is of."""
    open_set = {} if options.open_set is None else {"Open-set queries": str(options.open_set)}
    classes = len(set(queries.classes or ()))
    return {
        "Index": f"{options.index}: {len(gallery.index):,} items, ranked by "
        f"{gallery.index.rank_by}, engine {gallery.index.kind!r}",
        **_items(gallery),
        "Queries": f"{options.data}: {len(queries):,} items of {classes:,} classes, "
        f"hash {queries.fingerprint[:DIGITS]}",
        **open_set,
        **_calibration(gallery),
        "Model": gallery.posterior.recipe.model or "none: embeddings",
        **_posterior(gallery),
        "Versions": f"laplace_metric {__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}, Python {platform.python_version()}",
        "Written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _items(gallery: LoadedIndex) -> dict[str, str]:
    origin = gallery.origin
    if origin.data is None:
        return {"Items": "not known: the index was saved in Python"}
    kept = "none of it held out"
    if origin.holdout is not None:
        kept = f"{percent(origin.holdout)} of it held out, seed {origin.seed}"
    return {"Items": f"{origin.data}: {kept}, hash {origin.fingerprint[:DIGITS]}"}


def _calibration(gallery: LoadedIndex) -> dict[str, str]:
    calibration, origin = gallery.index.calibration, gallery.origin
    if calibration is None:
        return {"Calibration": "none"}
    n, of = len(calibration.known), ""
    if origin.calibrated_with is not None:
        of = f", hash {origin.calibrated_with[:DIGITS]}"
    return {
        "Calibration": f"promises tested on {n:,} queries, the match probability learnt from as "
        f"many others, of {calibration.k} neighbours each{of}; it looks at "
        f"{', '.join(calibration.looks_at)}"
    }


def _posterior(gallery: LoadedIndex) -> dict[str, str]:
    embedder, recipe = gallery.posterior.embedder, gallery.posterior.recipe
    settings = embedder.settings
    rows = {
        "Posterior": f"structure {settings.structure}, hessian {settings.hessian}, distance "
        f"{settings.distance}, prior precision {settings.prior_precision:.3g}"
    }
    if recipe.data:
        rows["Fitted to"] = f"{recipe.data}, hash {recipe.fingerprint[:DIGITS]}, seed {recipe.seed}"
    return rows
