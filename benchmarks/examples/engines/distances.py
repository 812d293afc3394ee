"""What engines call a distance or a score -> the Euclidean distance that a calibration reads.

For vectors x (query) and y (item), with ``d = |x - y|`` and their cosine ``c``:

    what comes back                                          d
    d^2             FAISS, LanceDB "l2"                      sqrt(.)
    d               pgvector <->, Qdrant Euclid              .
    1 - c           pgvector <=>, LanceDB "cosine"           sqrt(2 .)            |x| = |y| = 1
    c               Qdrant Cosine, FAISS inner product       sqrt(2 - 2 .)        |x| = |y| = 1
    1 / (1 + d^2)   Elasticsearch l2_norm, OpenSearch l2     sqrt(1 / . - 1)
    (1 + c) / 2     Elasticsearch cosine, dot_product;       sqrt(4 - 4 .)        |x| = |y| = 1
                    OpenSearch cosinesimil since 2.19

Engines compute in float32. A distance or its square keeps its relative precision; a cosine near 1,
as a score near 1, has an absolute error of about 6e-8, so that d has one of about 6e-8 / d.

Sources: Elasticsearch reference, "dense_vector field type"; OpenSearch documentation, "Spaces";
READMEs of pgvector and of FAISS; documentation of LanceDB and Qdrant, each on its metrics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def from_squared(squared: Any) -> Numbers:
    """``d`` of ``d^2``; rounding below 0 counts as 0.

    Examples
    --------
    >>> from_squared([4.0, -1e-9]).tolist()
    [2.0, 0.0]
    """
    return np.sqrt(np.maximum(np.asarray(squared, np.float64), 0.0))


def from_cosine(cosine: Any) -> Numbers:
    """``d`` of the cosine of two unit vectors: ``|x - y|^2 = 2 - 2 c``.

    Examples
    --------
    >>> from_cosine([1.0, 0.5, -1.0]).tolist()
    [0.0, 1.0, 2.0]
    """
    return from_squared(2.0 - 2.0 * np.asarray(cosine, np.float64))


def from_cosine_distance(distance: Any) -> Numbers:
    """``d`` of ``1 - c``, of unit vectors.

    Examples
    --------
    >>> from_cosine_distance([0.0, 0.5, 2.0]).tolist()
    [0.0, 1.0, 2.0]
    """
    return from_squared(2.0 * np.asarray(distance, np.float64))


def from_l2_score(score: Any) -> Numbers:
    """``d`` of ``1 / (1 + d^2)``.

    Examples
    --------
    >>> from_l2_score([1.0, 0.5, 0.2]).tolist()
    [0.0, 1.0, 2.0]
    """
    return from_squared(1.0 / np.asarray(score, np.float64) - 1.0)


def from_cosine_score(score: Any) -> Numbers:
    """``d`` of ``(1 + c) / 2``, of unit vectors.

    Examples
    --------
    >>> from_cosine_score([1.0, 0.75, 0.0]).tolist()
    [0.0, 1.0, 2.0]
    """
    return from_cosine(2.0 * np.asarray(score, np.float64) - 1.0)


def of_means(distance: Any, spread: Any, query_spread: Any, *, spherical: bool) -> Numbers:
    """``|u_x - u_y|`` of mean embeddings, of the distance ``d`` of ``[m_x, 0]`` to ``[m_y, s_y]``.

    With the one coordinate more (``laplace_metric.search._expected_vectors``) an engine ranks by
    expected distance. As ``d^2 = |m_x - m_y|^2 + s_y^2``, and on the sphere ``|m|^2 = 1 - s^2``,

        |u_x - u_y|^2 = d^2 - s_y^2                                                   raw
        u_x . u_y     = (2 - s_x^2 - d^2) / (2 sqrt((1 - s_x^2) (1 - s_y^2)))         sphere

    Parameters
    ----------
    distance, spread : [Q, k]
        ``d`` and ``s_y``; inf where there is no neighbour.
    query_spread : [Q]
        ``s_x``.
    spherical : bool
        Whether embeddings are directions.

    Examples
    --------
    >>> of_means([[5.0]], [[3.0]], [7.0], spherical=False).tolist()
    [[4.0]]
    """
    d2, s2 = (np.asarray(x, np.float64) ** 2 for x in (distance, spread))
    if not spherical:
        return from_squared(d2 - s2)
    x2 = np.asarray(query_spread, np.float64)[:, None] ** 2
    cosine = (2 - x2 - d2) / (2 * np.sqrt((1 - x2) * (1 - s2)))
    return from_cosine(cosine)
