"""The matching probability of hedged instance embeddings, and its loss."""

from __future__ import annotations

from torch import Tensor, nn

from baselines.base.pairs import unordered_pairs
from baselines.base.softmax_pairs import log_mean_exp
from laplace_metric.errors import LabelError


def matching_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Soft contrastive loss over every pair of a batch (Oh et al. 2019, eq. 3):

        p_ij = mean_s sigmoid(l_sij)
        loss = mean_same -log p_ij + mean_different -log(1 - p_ij)

    Both means are taken apart, so that the rarer kind counts as much (Kirchhof et al. 2023b, eq. 5;
    they take ``+ log p`` for the second term, on purpose, where this has the ``-log(1 - p)`` of the
    likelihood). ``1 - p = mean_s sigmoid(-l)``: no cancellation.

    Parameters
    ----------
    logits : Tensor [S, B, B]
        l, of S draws.
    labels : Tensor [B]

    Raises
    ------
    LabelError
        If the batch lacks pairs of one class or pairs of two.

    Examples
    --------
    >>> import torch
    >>> logits = torch.zeros(1, 3, 3)
    >>> round(float(matching_loss(logits, torch.tensor([0, 0, 1]))), 4)  # 2 log 2
    1.3863
    """
    i, j, same = unordered_pairs(labels)
    if bool(same.all()) or not bool(same.any()):
        raise LabelError(
            "the batch needs pairs of one class and pairs of two: use larger batches, and drop a "
            "small last one (drop_last=True)."
        )
    pairs = logits[:, i, j]
    match = log_mean_exp(nn.functional.logsigmoid(pairs[:, same]), 0)
    differ = log_mean_exp(nn.functional.logsigmoid(-pairs[:, ~same]), 0)
    return -match.mean() - differ.mean()
