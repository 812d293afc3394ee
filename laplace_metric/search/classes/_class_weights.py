"""Weights of a class model: their posterior, the prior and temperature, the moderated output.

For rows x_n [D] of classes y_n, logits ``s_c = w_c . x + b_c`` and p = softmax(s),

    (w, b)     = argmax sum_n log p(y_n | x_n) - l/2 sum_c |w_c|^2
    h_ci       = sum_n p_nc (1 - p_nc) x_ni^2

is the mode of the posterior of multinomial logistic regression, and the diagonal of the Hessian in
w, which is the Gauss-Newton matrix too. The Laplace posterior of w, diagonal and given b, is
``N(w, 1 / (h + l))``: a logit has the variance ``v_c = sum_i x_i^2 / (h_ci + l)``.

The average of the softmax over such logits has no closed form. MacKay (1992) approximates that of
the logistic function by the same function of a smaller logit, ``a / sqrt(1 + pi v / 8)``, his
moderated output; Gibbs (1997) does the same to each logit of a softmax, and Lu, Ie and Sha (2020)
derive it as a mean field:

    q(c | x)   = softmax_c((s_c - max_k s_k) / (T sqrt(1 + pi v_c / 8)))

A constant that is added to all logits changes no p, but would change what is moderated. Here the
likeliest class has the logit 0, so that it stays the likeliest: in six sets of features q was never
less likely than p then, which it was with logits of mean 0. The temperature T (Guo et al. 2017) is
1 in these references. It makes up for what they leave out, that logits vary together, and for an l
that is one of four numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.blocks import LARGE_BYTES, blocks

PRECISIONS = (1000.0, 100.0, 10.0, 1.0)
"""Candidates for l, strongest first."""
UNTOLD = PRECISIONS[1]
"""The l where the held-out rows cannot tell."""
TEMPERATURES = (0.1, 10.0)
"""Bounds of T. Its logarithm is N(0, 1) before: few held-out rows that are all right ask for 0."""
FOLDS = 5
"""One of them is held out to choose l and T."""
ITERATIONS, TOLERANCE = 60, 1e-4
"""Of the ascent: relative gain of the likelihood in a step, below which it ends. The loss is within
3e-4 of its minimum then; the best l leads the next by 1e-2 (Omniglot, FashionMNIST)."""
SQUARED_BYTES = 2**23
"""Memory of the logits and of the squares of rows that are held at once."""
CORE_LOGIT_BYTES = 2**20
"""Memory of the logits that stay in the cache of a processor."""


class Choice(NamedTuple):
    """Prior precision l and temperature T, and weights [C, D + 1] from which to begin."""

    prior_precision: float
    temperature: float
    start: Float[Tensor, "C D1"]


def moderated(
    logits: Float[Tensor, "n C"], variance: Float[Tensor, "n C"], temperature: float
) -> Float[Tensor, "n C"]:
    """Return ``log q(c | x)`` of logits with these variances.

    A logit of minus infinity, of a class that is left out, stays so.

    Examples
    --------
    >>> logits = torch.tensor([[4.0, 0.0]])
    >>> certain, uncertain = torch.zeros(1, 2), torch.full((1, 2), 8.0)
    >>> [round(float(moderated(logits, v, 1.0).exp()[0, 0]), 3) for v in (certain, uncertain)]
    [0.982, 0.877]
    """
    scale = temperature * (1 + torch.pi / 8 * variance).sqrt()
    return ((logits - logits.amax(1, keepdim=True)) / scale).log_softmax(1)


def held_out(n: int) -> Bool[Tensor, " n"]:
    """Return True for one of ``FOLDS`` parts of n rows, drawn with a fixed seed."""
    held = torch.zeros(n, dtype=torch.bool)
    held[torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // FOLDS]] = True
    return held


def choose(
    x: Float[Tensor, "n D"],
    y: Int[Tensor, " n"],
    held: Bool[Tensor, " n"],
    start: Float[Tensor, "C D1"],
    prior_precision: float | None = None,
) -> Choice:
    """Choose l, if it is not given, and T by the likelihood of the rows that are held out.

    Held-out rows of a class that the others lack tell nothing; without any other, l is ``UNTOLD``
    and T is 1. Where the rows held out come last, no row is copied.
    """
    seen = torch.zeros(len(start), dtype=torch.bool, device=y.device)
    seen[y[~held]] = True
    tests = held & seen[y]
    if not bool(tests.any()):
        return Choice(prior_precision or UNTOLD, 1.0, start)
    candidates = PRECISIONS if prior_precision is None else (prior_precision,)
    best, largest, at = Choice(candidates[0], 1.0, start), -np.inf, start
    others, asked = _rows_at(x, ~held), _rows_at(x, tests)
    for candidate in candidates:
        at = likeliest_weights(others, y[~held], at, candidate)
        precision = hessian_diagonal(others, at) + candidate
        logits, variance = (
            asked @ at[:, :-1].mT + at[:, -1],
            asked.square() @ precision.mT.reciprocal(),
        )
        value, temperature = _likeliest(logits.double(), variance.double(), y[tests, None])
        if value <= largest:
            break
        best, largest = Choice(candidate, temperature, at), value
    return best


def _rows_at(x: Float[Tensor, "n D"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "m D"]:
    """Return the rows that are chosen: a view where they follow one another."""
    at = chosen.nonzero().flatten()
    first, last = (int(at[0]), int(at[-1])) if len(at) else (0, -1)
    return x[first : last + 1] if last - first + 1 == len(at) else x[at]


def _likeliest(logits: Tensor, variance: Tensor, own: Int[Tensor, "n one"]) -> tuple[float, float]:
    """Return the largest ``log q`` of the own classes, and log density of T, over T; and that T."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        log_q = moderated(logits, variance, float(np.exp(log_temperature)))
        return log_temperature**2 / 2 - float(log_q.gather(1, own).sum())

    bounds = tuple(np.log(TEMPERATURES))
    found = minimize_scalar(loss, bounds=bounds, options={"xatol": 1e-2})
    return -float(found.fun), float(np.exp(found.x))


def hessian_diagonal(
    x: Float[Tensor, "n D"], weights: Float[Tensor, "C D1"]
) -> Float[Tensor, "C D"]:
    """Return h, the diagonal of the Hessian of ``-sum_n log p(y_n | x_n)`` in w."""
    total = torch.zeros_like(weights[:, :-1])
    for part in blocks(len(x), max(weights.shape) * x.element_size(), SQUARED_BYTES):
        rows = x[part]
        p = (rows @ weights[:, :-1].mT + weights[:, -1]).softmax(1)
        total.addmm_((p * (1 - p)).mT, rows.square())
    return total


def likeliest_weights(x: Tensor, y: Tensor, start: Tensor, prior_precision: float) -> Tensor:
    """Find ``argmax sum_n log p(y_n | x_n) - l/2 |w|^2`` [C, D + 1] by L-BFGS; b has a flat prior.

    The ascent is in w and ``b + w . m / 2``, the log share of a class under linear discriminant
    analysis: b and w hardly depend on each other then, and half the steps do.
    """
    from scipy.optimize import minimize

    n, n_classes = len(x), len(start)
    ones, own = x.new_ones(n, 1), y[:, None]
    budget = CORE_LOGIT_BYTES if x.device.type == "cpu" else LARGE_BYTES
    row_bytes = n_classes * x.element_size()
    parts = [(x[part], own[part]) for part in blocks(n, row_bytes, budget)]
    half = torch.zeros_like(start[:, :-1]).index_add_(0, y, x)
    half /= 2 * y.bincount(minlength=n_classes).clamp(min=1)[:, None]

    def shifted(wb: Tensor, sign: float) -> Tensor:
        offset = wb[:, -1:] + sign * (wb[:, :-1] * half).sum(1, keepdim=True)
        return torch.cat([wb[:, :-1], offset], 1)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        wb = shifted(torch.from_numpy(flat).to(x).reshape(start.shape), -1)
        value, slope = prior_precision / 2 * wb[:, :-1].square().sum(), wb.new_zeros(wb.shape[::-1])
        for rows, at in parts:
            logits = torch.addmm(wb[:, -1], rows, wb[:, :-1].mT)
            p = logits.softmax(1)  # log p by its largest, which no rounding makes 0
            value -= (logits.gather(1, at)[:, 0] - logits.amax(1) + p.amax(1).log()).sum()
            residual = p.scatter_add_(1, at, -ones[: len(at)])
            slope[:-1].addmm_(rows.mT, residual)
            slope[-1] += residual.sum(0)
        slope[:-1] += prior_precision * wb[:, :-1].mT - half.mT * slope[-1]
        return float(value) / n, (slope.mT / n).double().flatten().cpu().numpy()

    options = {"maxiter": ITERATIONS, "ftol": TOLERANCE, "gtol": 1e-6}
    begin = shifted(start, 1).double().flatten().cpu().numpy()
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return shifted(torch.from_numpy(found.x).to(x).reshape(start.shape), -1)
