"""Prompts of classes: their embeddings, checked, and grouped by class."""

from __future__ import annotations

from torch import Tensor

from laplace_metric._utils.validation import check_count
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError


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


def by_class(prompts: Embedding, templates: int) -> tuple[Tensor, Tensor]:
    """Return means and variances [C, T, D].

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
