"""Objectives of the training: CLIP, SigLIP, PCME++, ProLIP, and texts as regions.

Ours. A density (``log_inclusion``) spreads thinner as it widens, and CSD takes it farther from
everything, so that neither loss lets a text that names much be wide. A region does not:

    g_t(x)   = exp(-(x - mu_t)' S_t^-1 (x - mu_t) / 2)          membership, 1 at the mean
    m(t | x) = E g_t(x),  x ~ N(mu, S)
             = sqrt(det S_t / det(S + S_t)) exp(-d' (S + S_t)^-1 d / 2),  d = mu - mu_t

grows with S_t. It is ``Vol(t and x) / Vol(x)`` for unnormalised Gaussians, as the conditional
probability of box lattices is for boxes (Vilnis et al. 2018), and Bayes' rule holds exactly, with
the volume as the prior: ``m(t | u) / m(u | t) = sqrt(det S_t / det S_u)``.

What a pair of heads is trained with: one class a method, of one contract.

``prolip``: PPCL, inclusion and VIB (Chun et al. 2025, eq 6). ``pcme++``: soft contrastive with CSD
and VIB (Chun 2024). ``siglip`` (Zhai et al. 2023) and ``clip`` (Radford et al. 2021): no variances.
``prolip-regions``, ours: ProLIP, with texts as regions that grow with what they name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from laplace_metric._utils.validation import check_positive, check_real, check_share
from laplace_metric.errors import InputError
from laplace_metric.image_text._csd import (
    csd_similarity,
    entailed,
    inclusion_contrast,
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    soft_contrastive_loss,
    vib_divergence,
)
from laplace_metric.image_text._heads import FIRST_TRACE, HeadOutput
from laplace_metric.image_text._pairs import PairBatch

BLOCK_BYTES = 2**24
"""Of the differences of pairs that are computed at once."""


def log_membership(
    mu: Float[Tensor, "B D"],
    log_v: Float[Tensor, "B D"],
    mu_t: Float[Tensor, "C D"],
    log_v_t: Float[Tensor, "C D"],
) -> Float[Tensor, "B C"]:
    """``log m(t | x)`` of B inputs in C regions [B, C], at most 0.

    O(B C D) time; memory O(B C), forward and backward.

    Examples
    --------
    >>> mu, narrow = torch.zeros(1, 2), torch.zeros(1, 2)
    >>> log_membership(mu + 1, narrow, torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    tensor([[-1.1931, -0.0960]])
    """
    result: Tensor = _LogMembership.apply(mu, log_v.exp(), mu_t, log_v_t.exp())
    return result


class _LogMembership(torch.autograd.Function):
    """In blocks of inputs, with V = v + v_t and r = d / V.

    ::

        log m        = sum (log v_t - log V - d r) / 2
        d / d mu     = -r,  d / d mu_t = r,  d / d V = (r^2 - 1 / V) / 2
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, v: Tensor, mu_t: Tensor, v_t: Tensor) -> Tensor:
        ctx.save_for_backward(mu, v, mu_t, v_t)
        blocks = []
        for rows in _blocks(mu, mu_t):
            V, d = v[rows, None] + v_t, mu[rows, None] - mu_t  # [b, C, D]
            blocks.append((V.log() + d.square() / V).sum(-1))
        return (v_t.log().sum(-1) - torch.cat(blocks)) / 2

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        mu, v, mu_t, v_t = ctx.saved_tensors
        (g,) = upstream
        of_mu, of_v, of_mu_t, of_v_t = (torch.zeros_like(x) for x in (mu, v, mu_t, v_t))
        for rows in _blocks(mu, mu_t):
            w = 1 / (v[rows, None] + v_t)
            r = (mu[rows, None] - mu_t) * w
            weighted, slope = g[rows, :, None] * r, g[rows, :, None] * (r.square() - w) / 2
            of_mu[rows], of_v[rows] = -weighted.sum(1), slope.sum(1)
            of_mu_t += weighted.sum(0)
            of_v_t += slope.sum(0)
        return of_mu, of_v, of_mu_t, of_v_t + g.sum(0)[:, None] / (2 * v_t)


def _blocks(mu: Tensor, mu_t: Tensor) -> list[slice]:
    step = max(1, BLOCK_BYTES // (mu_t.numel() * mu_t.element_size()))
    return [slice(start, start + step) for start in range(0, len(mu), step)]


def conditional_loss(logit: Float[Tensor, "C C"], match: Bool[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Cross entropy of ``P(t | u)``, the share of the images of u that t names too.

    ``1/C sum_{u != t} -P log sigmoid(l_ut) - (1 - P) log sigmoid(-l_ut)``,
    ``P = |images of t and u| / |images of u|`` in the batch: "hand" of the images of "waving hand".

    Examples
    --------
    >>> hand, waving = [True, True], [True, False]
    >>> conditional_loss(torch.zeros(2, 2), torch.tensor([hand, waving]).T)
    tensor(0.6931)
    """
    y = match.to(logit)
    n = y.sum(0)
    target = (y.mT @ y) / n.clamp_min(1)[:, None]  # [u, t]
    loss = binary_cross_entropy_with_logits(logit, target, reduction="none")
    kept = (n > 0)[:, None] & ~torch.eye(len(n), dtype=torch.bool, device=n.device)
    return loss.where(kept, 0.0).sum() / len(n)


def size_loss(
    trace: Float[Tensor, " C"],
    n_images: Int[Tensor, " C"],
    exponent: Float[Tensor, ""],
    log_rate: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """The images that a text names as Poisson counts, of a power of its trace.

    ``n_t ~ Poisson(exp(c) (tr S_t)^k)``: minus the log likelihood without its constant,
    ``exp(z) - n z`` with ``z = c + k log tr S``, averaged with weights 1/n, because texts that name
    n images are in n times as many batches.

    Parameters
    ----------
    trace : Tensor [C]
        Above 0.
    n_images : Tensor [C]
        Of the whole data set, at least 1.
    exponent, log_rate : Tensor []
        k and c.

    Examples
    --------
    >>> n = torch.tensor([1, 4])
    >>> right = size_loss(torch.tensor([0.1, 0.4]), n, torch.tensor(1.0), torch.tensor(10.0).log())
    >>> bool(right < size_loss(torch.tensor([0.4, 0.1]), n, torch.tensor(1.0), torch.tensor(2.3)))
    True
    """
    z = log_rate + exponent * trace.log()
    n = n_images.to(z)
    return ((z.exp() - n * z) / n).sum() / (1 / n).sum()


SOFTER = 10.0
"""Of c, between texts: variances differ less there, and at c their loss is flat."""


class Objective(nn.Module, ABC):
    """A loss of a batch of images and texts, with a scale a and an offset b that are learnt.

    Parameters
    ----------
    a, b : float
        At the start.
    """

    probabilistic = True
    masked, masked_share = 0.0, 0.75
    c, epsilon = 10.0, -10.0

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.tensor(math.log(a)))
        self.b = nn.Parameter(torch.tensor(float(b)))

    @property
    def a(self) -> Tensor:
        """The scale, above 0."""
        return self.log_a.exp()

    @abstractmethod
    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        """The loss of a batch."""

    def masked_loss(self, full: HeadOutput, part: HeadOutput) -> Float[Tensor, ""]:
        """``masked`` times the inclusion of inputs in what is left of them after masking (eq 5)."""
        rows = full.mu, full.log_v, part.mu, part.log_v
        return self.masked * inclusion_loss(*rows, c=self.c, epsilon=self.epsilon)

    @property
    def settings(self) -> dict[str, float]:
        """The numbers that it was made with."""
        return {
            k: v
            for k, v in vars(self).items()
            if isinstance(v, (int, float)) and k[0] != "_" and k != "training"
        }

    def logit_scale(self) -> tuple[float, float] | None:
        """(a, b) of ``sigmoid(a s + b)``, the probability of a match; None if there is none."""
        return float(self.a.detach()), float(self.b.detach())

    def softmax_scale(self) -> float | None:
        """The scale a of a softmax of cosines over a batch; None where there is no softmax."""
        return None


class ProLIP(Objective):
    """PPCL, plus weights times inclusion of images in their texts, contrast and VIB.

    Parameters
    ----------
    inclusion : float
        Weight of ``inclusion_loss`` (alpha_1), over the pairs of the batch.
    entailment : float
        Weight, ours, of the same loss, with a tenth of its c, of texts in the texts that they
        imply: those that name all of their images in the batch, and more (``entailed``). It says
        nothing of unseen texts.
    contrast : float
        Weight of ``inclusion_contrast``, ours: each pair against another text of the batch.
    vib : float
        Weight of ``vib_divergence`` (beta), of images and of texts.
    c, epsilon : float
        Of the inclusion loss.
    masked : float
        Weight of ``masked_loss`` (alpha_2; 1e-3 in the paper): every image and text inside what is
        left of it after masking. See ``ImageTextEmbedder.fit``.
    masked_share : float in (0, 1)
        Of the patches or words that are hidden.
    first_b : float
        b at the start. At -10 hardly any pair seems to belong together, so that the first steps
        only draw together those that do, and encoders that train from nothing may send all inputs
        to one place. For them take about ``log(p / (1 - p)) + 10 first_trace``, p the share of
        matches among the pairs of a batch, such as -2.

    Raises
    ------
    InputError
        For weights below 0.
    """

    def __init__(
        self,
        inclusion: float = 1e-7,
        entailment: float = 0.0,
        contrast: float = 0.0,
        vib: float = 1e-4,
        c: float = 10.0,
        epsilon: float = -10.0,
        masked: float = 0.0,
        masked_share: float = 0.75,
        first_b: float = -10.0,
    ) -> None:
        super().__init__(a=10.0, b=check_real("first_b", first_b))
        self.first_b = float(first_b)
        self.masked = _weight("masked", masked)
        self.masked_share = check_share("masked_share", masked_share)
        self.inclusion = _weight("inclusion", inclusion)
        self.entailment = _weight("entailment", entailment)
        self.contrast, self.vib = _weight("contrast", contrast), _weight("vib", vib)
        self.c, self.epsilon = check_positive("c", c), check_real("epsilon", epsilon)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        s = csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
        loss = pairwise_sigmoid_loss(s, batch.match, self.a, self.b)
        i, j = batch.pairs.unbind(1)
        own = image.mu[i], image.log_v[i], text.mu[j], text.log_v[j]
        if self.inclusion:
            loss = loss + self.inclusion * inclusion_loss(*own, c=self.c, epsilon=self.epsilon)
        if self.entailment and len(texts := entailed(batch.match)):
            t, u = texts.unbind(1)
            implied = text.mu[t], text.log_v[t], text.mu[u], text.log_v[u]
            c = self.c / SOFTER
            implied_loss = inclusion_loss(*implied, c=c, epsilon=self.epsilon)
            loss = loss + self.entailment * implied_loss
        if self.contrast:
            mine, k = _other_texts(batch.match, i)
            if len(k):
                rows = [part[mine] for part in own]
                rows += [text.mu[k], text.log_v[k]]
                loss = loss + self.contrast * inclusion_contrast(*rows)
        both = vib_divergence(image.mu, image.log_v) + vib_divergence(text.mu, text.log_v)
        return loss + self.vib * both


def _weight(name: str, value: float) -> float:
    """A number of at least 0, or ``InputError``."""
    if check_real(name, value, "number >= 0") < 0:
        raise InputError(f"{name}={value!r}: pass a number >= 0.")
    return float(value)


def _other_texts(match: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs whose image (rows ``i`` [P]) has another text, and a random one of these for each."""
    free = (~match[i]).float()
    mine = free.any(1).nonzero().flatten()
    return mine, torch.multinomial(free[mine], 1).squeeze(1) if len(mine) else mine


class ProLIPRegions(ProLIP):
    """ProLIP, and texts as regions: a text that names more, and more various, images is wider.

    Ours (``_regions`` has the equations). Membership of images in texts and of texts in texts is
    ``sigmoid(a' log m + b')``, with a' and b' that are learnt.

    Parameters
    ----------
    membership : float
        Weight of the pairwise sigmoid loss of membership of images in texts.
    conditional : float
        Weight of ``conditional_loss``, of texts in texts.
    size : float
        Weight of ``size_loss``.
    **prolip : float
        As for ``ProLIP``.

    Raises
    ------
    InputError
        For weights below 0.
    """

    def __init__(
        self, membership: float = 1.0, conditional: float = 1.0, size: float = 1.0, **prolip: float
    ) -> None:
        super().__init__(**prolip)
        self.membership = _weight("membership", membership)
        self.conditional = _weight("conditional", conditional)
        self.size = _weight("size", size)
        self.log_a_inside = nn.Parameter(torch.tensor(math.log(0.05)))
        self.b_inside = nn.Parameter(torch.tensor(4.0))
        self.log_exponent = nn.Parameter(torch.tensor(0.0))
        self.log_rate = nn.Parameter(torch.tensor(-math.log(FIRST_TRACE)))

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        loss = super().forward(image, text, batch)
        a, b, regions = self.log_a_inside.exp(), self.b_inside, (text.mu, text.log_v)
        if self.membership:
            inside = log_membership(image.mu, image.log_v, *regions)
            loss = loss + self.membership * pairwise_sigmoid_loss(inside, batch.match, a, b)
        if self.conditional:
            logit = a * log_membership(*regions, *regions) + b
            loss = loss + self.conditional * conditional_loss(logit, batch.match)
        if self.size:
            how = self.log_exponent.exp(), self.log_rate
            loss = loss + self.size * size_loss(text.trace, batch.n_images, *how)
        return loss


class SigLIP(Objective):
    """The pairwise sigmoid loss of cosines; ``first_b`` as of ``ProLIP``."""

    probabilistic = False

    def __init__(self, first_b: float = -10.0) -> None:
        super().__init__(a=10.0, b=check_real("first_b", first_b))
        self.first_b = float(first_b)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        return pairwise_sigmoid_loss(image.mu @ text.mu.mT, batch.match, self.a, self.b)


class CLIP(Objective):
    """InfoNCE with any number of matches; its temperature starts at .07 and stays above .01."""

    probabilistic = False

    def __init__(self) -> None:
        super().__init__(a=1 / 0.07, b=0.0)
        self.b.requires_grad_(False)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        return multi_positive_infonce(image.mu @ text.mu.mT, batch.match, self.a.clamp_max(100))

    def logit_scale(self) -> None:
        """A softmax over a batch is no probability of a pair."""

    def softmax_scale(self) -> float:
        """Return the scale of the loss, at most 100."""
        return min(float(self.a.detach()), 100.0)


class PCMEPlusPlus(Objective):
    """``soft_contrastive_loss`` of CSD and VIB.

    Parameters
    ----------
    pseudo_weight : float
        Of pseudo-positives.
    vib : float
    """

    def __init__(self, pseudo_weight: float = 0.1, vib: float = 1e-4) -> None:
        super().__init__(a=5.0, b=5.0)
        self.pseudo_weight = _weight("pseudo_weight", pseudo_weight)
        self.vib = _weight("vib", vib)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        distance = 2 - 2 * csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
        how = {"pseudo_weight": self.pseudo_weight}
        loss = soft_contrastive_loss(distance, batch.match, self.a, self.b, **how)
        both = vib_divergence(image.mu, image.log_v) + vib_divergence(text.mu, text.log_v)
        return loss + self.vib * both

    def logit_scale(self) -> tuple[float, float]:
        """``b - a CSD = 2 a s + b - 2 a``."""
        a, b = float(self.a.detach()), float(self.b.detach())
        return 2 * a, b - 2 * a


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "prolip": ProLIP,
    "prolip-regions": ProLIPRegions,
    "siglip": SigLIP,
    "clip": CLIP,
    "pcme++": PCMEPlusPlus,
}
