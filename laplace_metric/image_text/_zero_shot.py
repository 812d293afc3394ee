"""Zero-shot classification: one embedding a class out of several prompts, and images by CSD.

    Z_c = sum_n pi_cn Z_cn,   mean m_c = sum_n pi_cn mu_cn,   variances sum_n pi_cn^2 S_cn

of independent Gaussians, all divided by ``|m_c|`` so that the mean is of unit length (Radford et
al. 2021 for equal weights; Chun et al. 2025, section 3.4). An image goes to the class of largest
``mu . mu_c - (tr S + tr S_c) / 2``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.validation import as_tensor
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.image_text._prompts import by_class, check_embeddings
from laplace_metric.image_text.objectives._csd import similarities


def class_embeddings(
    prompts: Embedding, templates: int, weights: Float[Tensor, "C T"] | None = None
) -> Embedding:
    """Return one embedding a class.

    Parameters
    ----------
    prompts : Embedding [C T]
        Embeddings of the prompts, class by class: T prompts of the first one, then those of the
        second.
    templates : int
        Number T of prompts of a class.
    weights : Tensor [C, T] or None
        Weights from ``prompt_weights`` or ``prompt_filter``; at least 0, each class sums to 1.
        None, the default: equal weights.

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
    """Return the similarity of N images to C classes by CSD; ``argmax(1)`` is the class.

    Parameters
    ----------
    image : Embedding [N]
        Embeddings of the images.
    prompts, templates, weights
        Prompts of the classes, number of prompts of a class, and weights, as ``class_embeddings``
        takes them. Default: 1 prompt a class, equal weights.

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


def _checked(weights: Tensor, mu: Tensor) -> Tensor:
    pi = as_tensor("weights", weights).to(mu)
    if pi.shape != mu.shape[:2]:
        raise InputError(f"weights has shape {tuple(pi.shape)}: pass {tuple(mu.shape[:2])}.")
    sums = pi.sum(1)
    if bool((pi < 0).any()) or not bool(((sums - 1).abs() < 1e-4).all()):
        raise InputError("weights: pass numbers >= 0 that sum to 1 in each class.")
    return pi
