"""Cross-fitted probabilities on the scale of the fit that answers.

Each part of the queries is judged by a fit to the others, and later queries by a fit to all. These
fits agree on which hit is surer, but not on how sure: a step of one lies at .60, of another at .65.
A threshold between the two would accept, from the fit that answers, what no test has seen. So the
i-th largest held-out probability becomes the i-th largest that the answering fit gives to the same
queries; where held-out ones are equal, the largest of theirs. With p_i by the answering fit, and
q_i the result for the same n queries,

    #{i : q_i >= t}  >=  #{i : p_i >= t}        for every t

so that at any threshold a test counts at least as many answers as the fit gives to these queries.
No theorem covers what a fit to its own queries gives to others: such guarantees are simulated.
"""

from __future__ import annotations

import numpy as np

from laplace_metric.calibration._arrays import Array, Flags


def on_answering_scale(held_out: Array, answering: Array, counts: Flags) -> Array:
    """Return held-out values [Q, k] on the scale of ``answering`` [Q, k], each column for itself.

    Parameters
    ----------
    held_out, answering : [Q, k]
        Probabilities by the fits to other queries, and by the fit to all.
    counts : [Q, k]
        True where there is a hit; the rest stays as it is.

    Examples
    --------
    >>> held_out, answering = np.array([[0.6], [0.6], [0.9]]), np.array([[0.5], [0.7], [0.8]])
    >>> on_answering_scale(held_out, answering, np.ones((3, 1), bool))[:, 0]
    array([0.7, 0.7, 0.8])
    """
    scaled = held_out.copy()
    for column in range(held_out.shape[1]):
        rows = counts[:, column]
        _, place, ties = np.unique(held_out[rows, column], return_inverse=True, return_counts=True)
        scaled[rows, column] = np.sort(answering[rows, column])[ties.cumsum() - 1][place]
    return scaled
