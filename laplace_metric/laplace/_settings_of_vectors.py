"""Distance and Hessian of vectors that are there already, where none is asked for.

Every way in that takes vectors chooses here: ``Guard``, ``LaplaceEmbedder.from_embeddings``, the
scikit-learn estimators and the command ``fit``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

UNIT = 1e-3
"""Deviation from length 1 of vectors that count as normalised."""


def all_unit(vectors: Tensor) -> bool:
    """Return whether all vectors [N, D] have length 1.

    Examples
    --------
    >>> import torch
    >>> all_unit(torch.eye(3)), all_unit(2 * torch.eye(3))
    (True, False)
    """
    return bool(((vectors.norm(dim=1) - 1).abs() < UNIT).all())


def settings_of_vectors(given: dict[str, Any], *, unit: bool) -> dict[str, Any]:
    """Return settings with a distance and a Hessian.

    Lengths count wherever there are any: a direction is as familiar at any length, so that with
    "arccos" noise in a familiar direction is answered. With "euclidean" the Hessian "fixed" has no
    curvature without a margin: "positives" counts the pairs of one class.

    Parameters
    ----------
    given : dict
        Settings of ``LaplaceEmbedder`` that the user gave; they are kept.
    unit : bool
        True if all vectors have length 1.

    Examples
    --------
    >>> settings_of_vectors({}, unit=True)
    {'distance': 'arccos', 'hessian': 'fixed'}
    >>> settings_of_vectors({"structure": "diag"}, unit=False)
    {'structure': 'diag', 'distance': 'euclidean', 'hessian': 'positives'}
    """
    distance = given.get("distance", "arccos" if unit else "euclidean")
    hessian = given.get("hessian", "positives" if distance == "euclidean" else "fixed")
    return {**given, "distance": distance, "hessian": hessian}
