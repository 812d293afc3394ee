"""Numbers that a fit has and lacks, in words: for the fit's warnings and for ``print(embedder)``.

What tells whether an input is like anything fitted takes time that grows with the cube of the
width of the head's inputs, so that has a limit.
"""

from __future__ import annotations

import warnings

from laplace_metric.errors import LimitWarning, callers_line
from laplace_metric.familiarity._fit_set import WIDEST
from laplace_metric.laplace._fitted import Fitted

OF_THE_FIT_SET = ("epistemic", "near", "far", "local", "ambiguity")


def warn_if_limited(n_features: int) -> None:
    """Warn of the numbers that a fit of this size has not.

    Parameters
    ----------
    n_features : int
        Numbers that enter the head, D.

    Warns
    -----
    LimitWarning
        Beyond 8,192 numbers; it names the limit and what to do.
    """
    if n_features > WIDEST:
        text = (
            f"{n_features:,} numbers enter the head, and {', '.join(OF_THE_FIT_SET)} are computed "
            f"for up to {WIDEST:,}: this fit has none of them, and an index tells unfamiliar "
            "queries by uncertainty in their place. Reduce the vectors first (a PCA fitted to "
            "these inputs, or a layer of the model that is narrower), or use uncertainty."
        )
        warnings.warn(text, LimitWarning, stacklevel=callers_line())


def available(fitted: Fitted) -> dict[str, str]:
    """Return what an embedding of this fit has, and what it lacks and why.

    Parameters
    ----------
    fitted : Fitted
        Result of the fit of a ``LaplaceEmbedder``.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric import LaplaceEmbedder
    >>> embedder = LaplaceEmbedder.from_embeddings(torch.randn(20, 8), torch.arange(20) % 4)
    >>> available(embedder.fitted_)
    {'has': 'uncertainty, epistemic, near, far, local, ambiguity'}
    """
    lacks, why = _lacking(fitted)
    names = ["uncertainty", *(name for name in OF_THE_FIT_SET if name not in lacks)]
    has = {"has": ", ".join(names)}
    return {**has, "lacks": f"{', '.join(lacks)}: {why}"} if lacks else has


def _lacking(fitted: Fitted) -> tuple[tuple[str, ...], str]:
    near_far, jacobian = fitted.near_far, fitted.jacobian
    if near_far is None:
        width = jacobian.layouts[0].n_features if jacobian.layered else 0
        if width > WIDEST:
            return OF_THE_FIT_SET, f"{width:,} numbers enter the head, limit {WIDEST:,}"
        return OF_THE_FIT_SET, "nothing of its points was kept"
    n_classes = len(near_far.class_means)
    if not n_classes:
        return ("near", "ambiguity"), "no class has several members that differ"
    if not len(near_far.strength):
        return ("ambiguity",), "too few members of each class"
    return (), ""
