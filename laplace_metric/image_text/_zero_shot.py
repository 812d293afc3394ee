"""Zero-shot classification by prompts, and which prompts describe a few images.

Bayesian prompt re-weighting: which prompts describe a few images of a class.

The images of class c are drawn from a mixture of its N prompts, x_j ~ sum_n pi_n N(mu_n, S_n), and
pi has a Dirichlet prior; EM climbs to the posterior's mode (Chun et al. 2025, appendix A.8):

    E   gamma_jn = pi_n f_n(x_j) / sum_i pi_i f_i(x_j)
    M   N_n = sum_j gamma_jn,     pi_n = (N_n + alpha_n - 1) / (M' + sum_i (alpha_i - 1))

Two things differ from what is printed. The paper's prior is flat and 1 / tr S_n only starts EM,
which, the log posterior being concave for alpha >= 1, does not matter in the end; here

    alpha_n = 1 + (alpha - 1) N u_n,    u_n = (1 / tr S_n) / sum_i (1 / tr S_i)

is the prior (mean alpha, a certain prompt counts more), and u what a class without images gets.
And alpha < 1, which gives negative weights, is refused. f_n has ``S_n + epsilon I``.

Classes as texts: one embedding a class out of several prompts, and images by CSD.

    Z_c = sum_n pi_cn Z_cn,   mean m_c = sum_n pi_cn mu_cn,   variances sum_n pi_cn^2 S_cn

of independent Gaussians, all divided by ``|m_c|`` so that the mean is of unit length (Radford et
al. 2021 for equal weights; Chun et al. 2025, section 3.4). An image goes to the class of largest
``mu . mu_c - (tr S + tr S_c) / 2``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import (
    ArrayLike,
    as_labels,
    as_tensor,
    check_count,
    check_positive,
    check_real,
)
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, LabelError
from laplace_metric.image_text._gaussians import similarities

MAX_STEPS = 200
TOLERANCE = 1e-6
"""Stop when no weight moves by more."""


def check_embeddings(**named: Embedding) -> None:
    """Raise ``InputError`` unless all are embeddings of one size, and not empty."""
    for name, value in named.items():
        if not isinstance(value, Embedding):
            raise InputError(f"{name} is a {type(value).__name__}: pass an Embedding.")
        if not len(value):
            raise InputError(f"{name} is empty: pass at least one row.")
    sizes = {name: value.mean.shape[1] for name, value in named.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"embeddings differ in size: {sizes}. Pass those of one embedder.")


def prompt_weights(
    image: Embedding,
    labels: ArrayLike,
    prompts: Embedding,
    templates: int,
    *,
    alpha: float = 2.0,
    epsilon: float = 0.02,
    samples: int = 20,
    generator: Seed = None,
) -> Float[Tensor, "C N"]:
    """Weights of the prompts of each class from a few images of it.

    Do not evaluate on these images: their class is what the weights were fitted to.

    Parameters
    ----------
    image : Embedding [B]
        A few of each class; a class may have none.
    labels : whole numbers [B]
        From 0 to C - 1.
    prompts : Embedding [C N]
        Class by class.
    templates : int
        N.
    alpha : float >= 1
        Mean of the prior's parameters; 1: flat, maximum likelihood.
    epsilon : float > 0
        Added to the variances of the prompts.
    samples : int
        Draws of each image, which are the observations.
    generator : torch.Generator, seed or None

    Returns
    -------
    Tensor [C, N]
        pi, at least 0; each class sums to 1. For ``zero_shot``.

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
    >>> pi = prompt_weights(prompts[0], [0], prompts, 2, generator=0)  # one image, at the first
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
    draws = image.sample(samples, as_generator(generator))  # [samples, B, D]
    prior = _prior(variance.sum(-1), alpha)
    weights = []
    for c in range(len(mu)):
        x = draws[:, y == c].flatten(0, 1)
        weights.append(_em(_log_density(x, mu[c], variance[c] + epsilon), prior[c]))
    return torch.stack(weights).to(mu)


def _prior(trace: Tensor, alpha: float) -> Tensor:
    """alpha_n [C, N], float64; equal without variances."""
    exact = trace.double()
    certain = torch.where((exact > 0).all(1, keepdim=True), 1 / exact, torch.ones_like(exact))
    u = certain / certain.sum(1, keepdim=True)
    return 1 + (alpha - 1) * u.shape[1] * u


def _log_density(x: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """``log f_n(x_j)`` [M', N] up to a constant of all, float64."""
    x, mu, v = x.double(), mu.double(), variance.double()
    d = x.square() @ (1 / v).mT - 2 * x @ (mu / v).mT + (mu.square() / v).sum(1)
    return -(d + v.log().sum(1)) / 2


def _em(log_f: Tensor, alpha: Tensor) -> Tensor:
    """Weights [N] at the mode of the posterior."""
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


def class_embeddings(
    prompts: Embedding, templates: int, weights: Float[Tensor, "C T"] | None = None
) -> Embedding:
    """One embedding a class.

    Parameters
    ----------
    prompts : Embedding [C T]
        Class by class: T prompts of the first one, then those of the second.
    templates : int
        T.
    weights : Tensor [C, T] or None
        Of ``prompt_weights`` or ``prompt_filter``; at least 0, each class sums to 1. None: equal.

    Returns
    -------
    Embedding [C]

    Raises
    ------
    InputError
        For numbers of rows that do not fit, weights that are none, and prompts that cancel out.

    Examples
    --------
    >>> prompts = Embedding(Gaussian(torch.eye(4), torch.full((4, 4), 0.1)))
    >>> class_embeddings(prompts, 2).mean
    tensor([[0.7071, 0.7071, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.7071, 0.7071]])
    """
    mu, variance = by_class(prompts, templates)
    pi = torch.full_like(mu[..., 0], 1 / templates)
    if weights is not None:
        pi = _checked(weights, mu)
    m = (pi[..., None] * mu).sum(1)
    length = m.norm(dim=1, keepdim=True)
    if bool((length == 0).any()):
        row = int((length[:, 0] == 0).nonzero()[0])
        raise InputError(f"prompts of class {row} cancel out: their mean is zero. Leave some out.")
    v = (pi.square()[..., None] * variance).sum(1) / length.square()
    return Embedding(Gaussian(m / length, v))


def zero_shot(
    image: Embedding,
    prompts: Embedding,
    templates: int = 1,
    weights: Float[Tensor, "C T"] | None = None,
) -> Float[Tensor, "N C"]:
    """Similarity of N images to C classes by CSD; ``argmax(1)`` is the class.

    Parameters
    ----------
    image : Embedding [N]
    prompts, templates, weights
        As in ``class_embeddings``.

    Raises
    ------
    InputError
        For numbers of rows that do not fit, and weights that are none.

    Examples
    --------
    >>> e = Embedding(Gaussian(torch.eye(2), torch.zeros(2, 2)))
    >>> zero_shot(e, e).argmax(1)
    tensor([0, 1])
    """
    check_embeddings(image=image, prompts=prompts)
    return similarities(image, class_embeddings(prompts, templates, weights))


def prompt_filter(prompts: Embedding, templates: int, keep: int) -> Float[Tensor, "C T"]:
    """Equal weights for the ``keep`` most certain prompts of each class, 0 for the others.

    By the trace of their variances; without variances by their order (Chun et al. 2025, section
    3.4, "top-K prompts").

    Parameters
    ----------
    prompts : Embedding [C T]
    templates : int
        T.
    keep : int
        From 1 to T.

    Raises
    ------
    InputError
        For numbers that do not fit.

    Examples
    --------
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


def by_class(prompts: Embedding, templates: int) -> tuple[Tensor, Tensor]:
    """Means and variances [C, T, D].

    Raises
    ------
    InputError
        If the rows are no multiple of T.
    """
    check_embeddings(prompts=prompts)
    n = check_count("templates", templates)
    if len(prompts) % n:
        raise InputError(
            f"prompts has {len(prompts)} rows, which is no multiple of templates={n}: pass T rows "
            "a class, class by class."
        )
    mu, variance = prompts.mean, prompts.variance
    return mu.unflatten(0, (-1, n)), variance.unflatten(0, (-1, n))


def _checked(weights: Tensor, mu: Tensor) -> Tensor:
    pi = as_tensor("weights", weights).to(mu)
    if pi.shape != mu.shape[:2]:
        raise InputError(f"weights has shape {tuple(pi.shape)}: pass {tuple(mu.shape[:2])}.")
    sums = pi.sum(1)
    if bool((pi < 0).any()) or not bool(((sums - 1).abs() < 1e-4).all()):
        raise InputError("weights: pass numbers >= 0 that sum to 1 in each class.")
    return pi
