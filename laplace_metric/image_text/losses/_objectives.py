"""What a pair of heads is trained with: one class a method, of one contract.

``prolip``: PPCL, inclusion and VIB (Chun et al. 2025, eq 6). ``pcme++``: soft contrastive with CSD
and VIB (Chun 2024). ``siglip`` (Zhai et al. 2023) and ``clip`` (Radford et al. 2021): no variances.
``prolip-regions``, ours: ProLIP, with texts as regions that grow with what they name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_positive, check_real, check_share
from laplace_metric.errors import InputError
from laplace_metric.image_text._heads import FIRST_TRACE, HeadOutput
from laplace_metric.image_text._pairs import PairBatch
from laplace_metric.image_text.losses._contrastive import (
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    soft_contrastive_loss,
    vib_divergence,
)
from laplace_metric.image_text.losses._csd import csd_similarity
from laplace_metric.image_text.losses._inclusion import entailed, inclusion_contrast, inclusion_loss
from laplace_metric.image_text.losses._regions import conditional_loss, log_membership, size_loss

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
        """As the loss has it, at most 100."""
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
