"""ProLIP with two losses of this project: texts inside the texts they imply, pairs against others.

Both were tried before regions (``ProLIPRegions``), which are wider for what is general.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from laplace_metric.image_text import ProLIP, inclusion_loss, log_inclusion
from laplace_metric.image_text._head import HeadOutput
from laplace_metric.image_text._pairs import PairBatch

SOFTER = 10.0
"""Of c, between texts: variances differ less there, and at c their loss is flat."""


class EntailedProLIP(ProLIP):
    """``entailment`` and ``contrast`` are the weights of both losses.

    The inclusion loss, with a tenth of its c, of texts in the texts that name all of their images
    in the batch, and more (``entailed``); and ``inclusion_contrast`` of each pair against another
    text of the batch.
    """

    def __init__(self, entailment: float, contrast: float) -> None:
        super().__init__()
        self.entailment, self.contrast = entailment, contrast

    def forward(self, image: HeadOutput, text: HeadOutput, batch: PairBatch) -> Float[Tensor, ""]:
        """Return the loss of a batch."""
        loss = super().forward(image, text, batch)
        if len(texts := entailed(batch.match)):
            t, u = texts.unbind(1)
            implied = inclusion_loss(
                text.mu[t], text.log_v[t], text.mu[u], text.log_v[u],
                c=self.c / SOFTER, epsilon=self.epsilon,
            )  # fmt: skip
            loss = loss + self.entailment * implied
        i, j = batch.pairs.unbind(1)
        mine, k = _other_texts(batch.match, i)
        if len(k):
            i, j = i[mine], j[mine]
            own = log_inclusion(image.mu[i], image.log_v[i], text.mu[j], text.log_v[j])
            other = log_inclusion(image.mu[i], image.log_v[i], text.mu[k], text.log_v[k])
            contrast = -logsigmoid((own - other) / image.mu.shape[-1]).mean()
            loss = loss + self.contrast * contrast
        return loss


def entailed(match: Bool[Tensor, "B C"]) -> Int[Tensor, "P two"]:
    """Rows (specific, general) of texts where every image of the first is one of the second too.

    And the second has more images: "poodle", "dog".
    """
    x = match.to(torch.float32)
    shared = x.mT @ x  # images that both texts name [C, C]
    n = shared.diagonal()
    return ((shared == n[:, None]) & (n > n[:, None]) & (n[:, None] > 0)).nonzero()


def _other_texts(match: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs whose image (rows ``i`` [P]) has another text, and a random one of these for each."""
    free = (~match[i]).float()
    mine = free.any(1).nonzero().flatten()
    return mine, torch.multinomial(free[mine], 1).squeeze(1) if len(mine) else mine
