"""Objectives: sums of losses that train two heads, one class a method.

``prolip``: PPCL, inclusion and VIB (Chun et al. 2025, eq 6). ``pcme++``: soft contrastive with CSD
and VIB (Chun 2024). ``siglip`` (Zhai et al. 2023) and ``clip`` (Radford et al. 2021): no variances.
``prolip-regions``, this project's: ProLIP, with texts as regions that grow with what they name
(``log_membership``), because neither CSD nor the inclusion of densities lets a text that names much
be wide.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.validation import check_positive, check_real
from laplace_metric.errors import InputError
from laplace_metric.image_text._head import FIRST_TRACE, GaussianHead, HeadOutput
from laplace_metric.image_text._pairs import PairBatch
from laplace_metric.image_text.objectives._csd import csd_similarity
from laplace_metric.image_text.objectives._losses import (
    conditional_loss,
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    size_loss,
    soft_contrastive_loss,
    vib_divergence,
)
from laplace_metric.image_text.objectives._membership import log_membership


class Objective(nn.Module, ABC):
    """A loss of a batch of images and texts, with a scale a and an offset b that are learnt.

    Parameters
    ----------
    a, b : float
        Initial values of the scale and of the offset.
    """

    probabilistic, softmax = True, False
    masked, c, epsilon = 0.0, 10.0, -10.0

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.tensor(math.log(a)))
        self.b = nn.Parameter(torch.tensor(float(b)))

    @property
    def a(self) -> Tensor:
        """Scale, above 0."""
        return self.log_a.exp()

    @abstractmethod
    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Parameters
        ----------
        image, text : HeadOutput
            Outputs of the heads for the images and the texts of the batch.
        batch : PairBatch
            Pairs of the batch that belong together.
        """

    def masked_loss(self, full: HeadOutput, part: HeadOutput) -> Float[Tensor, ""]:
        """Return ``masked`` times the inclusion of inputs in themselves masked (eq 5).

        Parameters
        ----------
        full, part : HeadOutput
            Outputs of a head for the inputs, and for the same inputs masked.
        """
        loss = inclusion_loss(
            full.mu, full.log_v, part.mu, part.log_v, c=self.c, epsilon=self.epsilon
        )
        return self.masked * loss

    @property
    def settings(self) -> dict[str, float]:
        """Numbers that make the same objective again."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, (int, float)) and name[0] != "_" and name != "training"
        }

    def scale(self) -> tuple[float, float] | None:
        """Return (a, b) of the match probability ``sigmoid(a s + b)``; None if there is none.

        With ``softmax`` (a, 0) of a softmax of ``a s`` over a batch.
        """
        return float(self.a.detach()), float(self.b.detach())


class ProLIP(Objective):
    """PPCL, plus weights times the inclusion of images in their texts and VIB.

    Parameters
    ----------
    inclusion : float
        Weight of ``inclusion_loss`` (alpha_1), over the pairs of the batch. Default: 1e-7.
    vib : float
        Weight of ``vib_divergence`` (beta), of images and of texts. Default: 1e-4.
    c, epsilon : float
        Constants of the inclusion loss, see ``inclusion_loss``. Default: 10 and -10.
    masked : float
        Weight of ``masked_loss`` (alpha_2; 1e-3 in the paper): every image and text inside what is
        left of it after masking. See ``ImageTextEmbedder.fit``. Default: 0.
    first_b : float
        Initial b. At -10, the default, hardly any pair seems to belong together, so that the first
        steps only draw together those that do, and encoders that train from nothing may send all
        inputs to one place. For them take about ``log(p / (1 - p)) + 10 first_trace``, p the share
        of matches among the pairs of a batch, such as -2.

    Raises
    ------
    InputError
        For weights below 0.
    """

    def __init__(
        self,
        inclusion: float = 1e-7,
        vib: float = 1e-4,
        c: float = 10.0,
        epsilon: float = -10.0,
        masked: float = 0.0,
        first_b: float = -10.0,
    ) -> None:
        super().__init__(a=10.0, b=check_real("first_b", first_b))
        self.first_b = float(first_b)
        self.inclusion, self.vib = _weight("inclusion", inclusion), _weight("vib", vib)
        self.c, self.epsilon = check_positive("c", c), check_real("epsilon", epsilon)
        self.masked = _weight("masked", masked)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        s = csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
        loss = pairwise_sigmoid_loss(s, batch.match, self.a, self.b)
        if self.inclusion:
            i, j = batch.pairs.unbind(1)
            inside = inclusion_loss(
                image.mu[i], image.log_v[i], text.mu[j], text.log_v[j],
                c=self.c, epsilon=self.epsilon,
            )  # fmt: skip
            loss = loss + self.inclusion * inside
        return loss + self.vib * _vib_of_both(image, text)


def _weight(name: str, value: float) -> float:
    """Return a number of at least 0, or raise ``InputError``."""
    if check_real(name, value, "number >= 0") < 0:
        raise InputError(f"{name}={value!r}: pass a number >= 0.")
    return float(value)


def _vib_of_both(image: HeadOutput, text: HeadOutput) -> Tensor:
    return vib_divergence(image.mu, image.log_v) + vib_divergence(text.mu, text.log_v)


class ProLIPRegions(ProLIP):
    """ProLIP, and texts as regions: a text that names more, and more various, images is wider.

    This project's (``log_membership`` has the equations). Membership of images in texts and of
    texts in texts is ``sigmoid(a' log m + b')``, with a' and b' that are learnt.

    Parameters
    ----------
    membership : float
        Weight of the pairwise sigmoid loss of membership of images in texts. Default: 1.
    conditional : float
        Weight of ``conditional_loss``, of texts in texts. Default: 1.
    size : float
        Weight of ``size_loss``. Default: 1.
    **prolip : float
        Settings of ``ProLIP``.

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
        a, b, mu, log_v = self.log_a_inside.exp(), self.b_inside, text.mu, text.log_v
        if self.membership:
            inside = log_membership(image.mu, image.log_v, mu, log_v)
            loss = loss + self.membership * pairwise_sigmoid_loss(inside, batch.match, a, b)
        if self.conditional:
            logit = a * log_membership(mu, log_v, mu, log_v) + b
            loss = loss + self.conditional * conditional_loss(logit, batch.match)
        if self.size:
            exponent = self.log_exponent.exp()
            size = size_loss(text.trace, batch.n_images, exponent, self.log_rate)
            loss = loss + self.size * size
        return loss


class SigLIP(Objective):
    """The pairwise sigmoid loss of cosines.

    Parameters
    ----------
    first_b : float
        Initial b, as of ``ProLIP``. Default: -10.
    """

    probabilistic = False

    def __init__(self, first_b: float = -10.0) -> None:
        super().__init__(a=10.0, b=check_real("first_b", first_b))
        self.first_b = float(first_b)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        return pairwise_sigmoid_loss(image.mu @ text.mu.mT, batch.match, self.a, self.b)


class CLIP(Objective):
    """InfoNCE with any number of matches; its temperature starts at .07 and stays above .01.

    Parameters
    ----------
    largest : float > 0
        Largest scale, one over the smallest temperature. Default: 100.
    """

    probabilistic, softmax = False, True

    def __init__(self, largest: float = 100.0) -> None:
        super().__init__(a=1 / 0.07, b=0.0)
        self.largest = check_positive("largest", largest)
        self.b.requires_grad_(False)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        return multi_positive_infonce(
            image.mu @ text.mu.mT, batch.match, self.a.clamp_max(self.largest)
        )

    def scale(self) -> tuple[float, float]:
        """Return the scale of the loss, at most ``largest``, and 0."""
        return min(float(self.a.detach()), self.largest), 0.0


class PCMEPlusPlus(Objective):
    """``soft_contrastive_loss`` of CSD and VIB.

    Parameters
    ----------
    pseudo_weight : float
        Weight of pseudo-positives. Default: 0.1.
    vib : float
        Weight of ``vib_divergence``, of images and of texts. Default: 1e-4.
    """

    def __init__(self, pseudo_weight: float = 0.1, vib: float = 1e-4) -> None:
        super().__init__(a=5.0, b=5.0)
        self.pseudo_weight = _weight("pseudo_weight", pseudo_weight)
        self.vib = _weight("vib", vib)

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        distance = 2 - 2 * csd_similarity(image.mu, image.log_v, text.mu, text.log_v)
        loss = soft_contrastive_loss(
            distance, batch.match, self.a, self.b, pseudo_weight=self.pseudo_weight
        )
        return loss + self.vib * _vib_of_both(image, text)

    def scale(self) -> tuple[float, float]:
        """Return a and b of ``b - a CSD = 2 a s + b - 2 a``."""
        a, b = float(self.a.detach()), float(self.b.detach())
        return 2 * a, b - 2 * a


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "prolip": ProLIP,
    "prolip-regions": ProLIPRegions,
    "siglip": SigLIP,
    "clip": CLIP,
    "pcme++": PCMEPlusPlus,
}


class TwoHeads(nn.Module):
    """The heads of both towers and the objective that joins them."""

    def __init__(self, image: GaussianHead, text: GaussianHead, objective: Objective) -> None:
        super().__init__()
        self.image, self.text, self.objective = image, text, objective

    @property
    def both(self) -> tuple[GaussianHead, GaussianHead]:
        """Heads of images and of texts."""
        return self.image, self.text
