"""Bayesian prompt re-weighting: which prompts describe a few images of a class.

The images of class c are drawn from a mixture of its N prompts, x_j ~ sum_n pi_n N(mu_n, S_n), and
pi has a Dirichlet prior; EM climbs to the posterior's mode (Chun et al. 2025, appendix A.8):

    E   gamma_jn = pi_n f_n(x_j) / sum_i pi_i f_i(x_j)
    M   N_n = sum_j gamma_jn,     pi_n = (N_n + alpha_n - 1) / (M' + sum_i (alpha_i - 1))

Two things differ from what is printed. The paper's prior is flat and 1 / tr S_n only starts EM,
which, the log posterior being concave for alpha >= 1, does not matter in the end; here

    alpha_n = 1 + (alpha - 1) N u_n,    u_n = (1 / tr S_n) / sum_i (1 / tr S_i)

is the prior (mean alpha, a certain prompt counts more), and u what a class without images gets.
And alpha < 1, which gives negative weights, is refused. f_n has ``S_n + epsilon I``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    ArrayLike,
    as_labels,
    check_count,
    check_positive,
    check_real,
)
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, LabelError
from laplace_metric.image_text._prompts import by_class, check_embeddings

MAX_STEPS = 200
TOLERANCE = 1e-6
"""Stop when no weight moves by more."""


def prompt_weights(
    image: Embedding,
    labels: ArrayLike,
    prompts: Embedding,
    templates: int,
    *,
    alpha: float = 2.0,
    epsilon: float = 0.02,
    samples: int = 20,
    seed: Seed = None,
) -> Float[Tensor, "C N"]:
    """Compute the weights of the prompts of each class from a few images of it.

    Do not evaluate on these images: their class is what the weights were fitted to.

    Parameters
    ----------
    image : Embedding [B]
        Embeddings of a few images of each class; a class may have none.
    labels : whole numbers [B]
        Class of each image, from 0 to C - 1.
    prompts : Embedding [C N]
        Embeddings of the prompts, class by class.
    templates : int
        Number N of prompts of a class.
    alpha : float >= 1
        Mean of the prior's parameters. Default: 2; 1 is a flat prior, maximum likelihood.
    epsilon : float > 0
        Number added to the variances of the prompts. Default: 0.02.
    samples : int
        Number of draws of each image, which are the observations. Default: 20.
    seed : torch.Generator, int or None
        Generator or seed of the samples of the images. None, the default: torch's global generator.

    Returns
    -------
    Tensor [C, N]
        Weights pi, at least 0; each class sums to 1. For ``zero_shot``.

    Raises
    ------
    InputError
        For numbers out of range.
    LabelError
        For labels of no class.

    Examples
    --------
    >>> from laplace_metric.distributions import Gaussian
    >>> prompts = Embedding(Gaussian(torch.eye(2), torch.full((2, 2), 0.1)))
    >>> pi = prompt_weights(prompts[0], [0], prompts, 2, seed=0)  # one image, at the first
    >>> bool(pi[0, 0] > pi[0, 1])
    True
    """
    check_embeddings(image=image, prompts=prompts)
    mu, variance = by_class(prompts, templates)
    if check_real("alpha", alpha, "number >= 1") < 1:
        raise InputError(f"alpha={alpha!r}: pass a number >= 1; below, weights may be negative.")
    check_positive("epsilon", epsilon)
    check_count("samples", samples)
    y = as_labels("labels", labels, image.mean, "image")
    if not 0 <= int(y.min()) <= int(y.max()) < len(mu):
        raise LabelError(f"labels lie in {int(y.min())} to {int(y.max())} of {len(mu)} classes.")
    draws = image.sample(samples, as_generator(seed))  # [samples, B, D]
    prior = _prior(variance.sum(-1), alpha)
    weights = []
    for c in range(len(mu)):
        x = draws[:, y == c].flatten(0, 1)
        weights.append(_em(_log_density(x, mu[c], variance[c] + epsilon), prior[c]))
    return torch.stack(weights).to(mu)


def _prior(trace: Tensor, alpha: float) -> Tensor:
    """Return alpha_n [C, N], float64; equal without variances."""
    exact = trace.double()
    certain = torch.where((exact > 0).all(1, keepdim=True), 1 / exact, torch.ones_like(exact))
    u = certain / certain.sum(1, keepdim=True)
    return 1 + (alpha - 1) * u.shape[1] * u


def _log_density(x: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """Return ``log f_n(x_j)`` [M', N] up to a constant of all, float64."""
    x, mu, v = x.double(), mu.double(), variance.double()
    d = x.square() @ (1 / v).mT - 2 * x @ (mu / v).mT + (mu.square() / v).sum(1)
    return -(d + v.log().sum(1)) / 2


def _em(log_f: Tensor, alpha: Tensor) -> Tensor:
    """Return weights [N] at the mode of the posterior."""
    more = alpha - 1
    if not len(log_f) and not bool(more.any()):  # no image, no prior
        return torch.full_like(alpha, 1 / len(alpha))
    pi = alpha / alpha.sum()
    for _ in range(MAX_STEPS):
        counts = (pi.log() + log_f).softmax(1).sum(0)
        new = (counts + more) / (len(log_f) + more.sum())
        moved, pi = float((new - pi).abs().max()), new
        if moved < TOLERANCE:
            break
    return pi


def prompt_filter(prompts: Embedding, templates: int, keep: int) -> Float[Tensor, "C T"]:
    """Return equal weights for the ``keep`` most certain prompts of each class, 0 for the others.

    By the trace of their variances; without variances by their order (Chun et al. 2025, section
    3.4, "top-K prompts").

    Parameters
    ----------
    prompts : Embedding [C T]
        Embeddings of the prompts, class by class.
    templates : int
        Number T of prompts of a class.
    keep : int
        Number of prompts that are kept of each class, from 1 to T.

    Raises
    ------
    InputError
        For numbers that do not fit.

    Examples
    --------
    >>> from laplace_metric.distributions import Gaussian
    >>> variance = torch.tensor([0.3, 0.1, 0.2])[:, None].expand(3, 3)
    >>> prompts = Embedding(Gaussian(torch.eye(3), variance))
    >>> prompt_filter(prompts, 3, keep=2)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    _, variance = by_class(prompts, templates)
    if check_count("keep", keep) > templates:
        raise InputError(f"keep={keep}: there are {templates} prompts a class.")
    trace = variance.sum(-1)
    kept = trace.sort(dim=1, stable=True).indices[:, :keep]
    return torch.zeros_like(trace).scatter_(1, kept, 1 / keep)
