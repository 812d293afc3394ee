"""From the most general text to an image: the texts nearest to the line from [ROOT].

    q_k = normalised (1 - k / K) r + k / K e,     k = 0 .. K
    text_k = argmax_t  q_k . mu_t - tr S_t / 2

with r the mean of [ROOT] and e that of the text nearest to the image (Desai et al. 2023; Alper and
Averbuch-Elor 2024; Chun et al. 2025, section 4.4 and appendix B.3: 50 steps). [ROOT] is the empty
text, or, with variances, the text that includes the image most: ``argmax_t inc(image, t)``, which
Chun et al. average with the empty text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.image_text import log_inclusion
from laplace_metric.image_text.objectives._csd import similarities

PAIRS = 2**18
"""Pairs whose dimensions are held at once."""


def inclusions(specific: Embedding, general: Embedding) -> Float[Tensor, "B C"]:
    """``inc(specific, general)`` of all pairs, in nats."""
    mu, log_v = general.mean, general.variance.log()
    rows = []
    step = max(1, PAIRS // len(general))
    for start in range(0, len(specific), step):
        part = specific[start : start + step]
        own = part.mean[:, None], part.variance.log()[:, None]
        rows.append(log_inclusion(*torch.broadcast_tensors(*own, mu[None], log_v[None])))
    return torch.cat(rows)


@dataclass(frozen=True)
class Traversal:
    """The texts that were passed on the way to each of B images.

    Parameters
    ----------
    rows : Tensor [B, K]
        Of the texts, from [ROOT] on; neighbours may be equal.

    Examples
    --------
    >>> path = Traversal(torch.tensor([[0, 0, 2, 1, 2]]))
    >>> path.distinct
    [[0, 2, 1]]
    """

    rows: Int[Tensor, "B K"]

    @cached_property
    def distinct(self) -> list[list[int]]:
        """Rows of the texts that were passed, each where it came first."""
        return [list(dict.fromkeys(row)) for row in self.rows.tolist()]


def traversal(
    image: Embedding, texts: Embedding, root: Embedding, *, steps: int = 50, end: str = "text"
) -> Traversal:
    """The texts nearest to the line from [ROOT] to each of B images.

    Parameters
    ----------
    image : Embedding [B]
    texts : Embedding [M]
        Each text once.
    root : Embedding [1] or [B]
        Of the empty text, or of ``inclusion_root``; only its mean counts.
    steps : int
        Points on the line, both ends among them; at least 2.
    end : "text" | "image"
        Where the line ends: at the text nearest to the image, as in the literature, or at the
        image itself.

    Examples
    --------
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> e = Embedding(Gaussian(points, torch.zeros(3, 2)))
    >>> traversal(e[2], e, e[0]).distinct  # from the first to the last, by the one between
    [[0, 1, 2]]
    """
    goal = image.mean
    if end == "text":
        goal = texts.mean[similarities(image, texts).argmax(1)]
    k = torch.linspace(0, 1, steps).to(goal)[None, :, None]
    trace, rows = texts.variance.sum(1), []
    starts = root.mean.expand_as(goal)
    n = max(1, PAIRS * goal.shape[1] // (steps * len(texts)))
    for r, e in zip(starts.split(n), goal.split(n), strict=True):
        q = normalize((1 - k) * r[:, None] + k * e[:, None], dim=-1)  # [b, K, D]
        rows.append((q @ texts.mean.mT - trace / 2).argmax(-1))
    return Traversal(torch.cat(rows))


def inclusion_root(image: Embedding, texts: Embedding, base: Embedding | None = None) -> Embedding:
    """For each of B images the text that includes it most, as [ROOT] for ``traversal``.

    Parameters
    ----------
    image : Embedding [B]
    texts : Embedding [M]
    base : Embedding [1] or None
        Of the empty text: means are then averaged with its own and made unit length, variances
        are those of an average of two independent Gaussians.

    Examples
    --------
    >>> e = Embedding(Gaussian(torch.eye(2), torch.tensor([[0.1, 0.1], [0.2, 0.2]])))
    >>> inclusion_root(e, e).mean
    tensor([[1., 0.],
            [0., 1.]])
    """
    best = texts[inclusions(image, texts).argmax(1)]
    if base is None:
        return best
    sums = best.mean + base.mean
    length = sums.norm(dim=1, keepdim=True).clamp_min(torch.finfo(sums.dtype).tiny)
    variance = (best.variance + base.variance) / length.square()
    return Embedding(Gaussian(sums / length, variance))


def traversal_scores(path: Traversal, own: Int[Tensor, "B L"]) -> dict[str, Float[Tensor, " B"]]:
    """Compute how much of each image's own texts lies on its way.

    Parameters
    ----------
    path : Traversal
    own : whole numbers [B, L]
        Rows of the texts of each image; one that stands twice counts once.

    Returns
    -------
    dict of Tensor [B], float64
        ``precision``: the share of distinct texts passed that are its own; ``recall``: the share
        of its own that were passed; ``any``: 1 where one was, which Chun et al. print as R@1;
        ``root``: 1 where the first text passed, the one nearest to [ROOT], is its own.

    Examples
    --------
    >>> path = Traversal(torch.tensor([[0, 0, 2, 1]]))
    >>> {name: float(v) for name, v in traversal_scores(path, torch.tensor([[2, 1, 5, 6]])).items()}
    {'precision': 0.6666666666666666, 'recall': 0.5, 'any': 1.0, 'root': 0.0}
    """
    scores: dict[str, list[float]] = {"precision": [], "recall": [], "any": [], "root": []}
    for passed, mine in zip(path.distinct, own.tolist(), strict=True):
        hits = len(set(passed) & set(mine))
        scores["precision"].append(hits / len(passed))
        scores["recall"].append(hits / len(set(mine)))
        scores["any"].append(float(hits > 0))
        scores["root"].append(float(passed[0] in mine))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}
