"""The log marginal likelihood of a fit, to compare heads that were fitted to the same data.

Laplace's approximation with the contrastive loss as the negative log likelihood of n pairs:

    log p(data) ~ -n L(theta) + P/2 log tau - tau/2 |theta|^2 - 1/2 log det(n H + tau I)

(MacKay 1992, eq 4.6; constants that all heads share are left out). L is the loss whose curvature is
H, an average over pairs, from class sums in O(N): with ``s_c = sum_{i in c} f_i``,
``q_c = sum_{i in c} |f_i|^2`` and their sums s and q over classes,

    sum over pairs of one class of |f_i - f_j|^2 / 2      sum_c (n_c q_c - |s_c|^2)
    sum over all pairs                                    N q - |s|^2
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.errors import InputError, LabelError
from laplace_metric.heads._row_checks import check_rows
from laplace_metric.inputs import Inputs
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._predicted import seen_at_head
from laplace_metric.models._batches import labelled_batches
from laplace_metric.models._modules import device_of


def log_marginal_likelihood(fitted: Fitted, loss: float) -> float:
    """Return the log marginal likelihood up to a constant, of the loss L at the trained weights."""
    posterior = fitted.posterior
    return (
        posterior.log_prior_and_determinant(posterior.prior_precision)
        - posterior.n_effective * loss
    )


@full_precision()
@torch.no_grad()
def loss_of(model: nn.Module, fitted: Fitted, inputs: Inputs, *, progress: bool) -> float:
    """Return the contrastive loss L of labelled inputs, an average over their pairs.

    Raises
    ------
    InputError
        For a loss with a margin, whose pairs are not sums over classes.
    LabelError
        If no two inputs are of one class, or all are, where the loss needs such pairs.
    NonFiniteError
        If an embedding holds NaN or infinity.
    """
    if fitted.loss.margin is not None:
        raise InputError(
            f"margin={fitted.loss.margin:.4g}: which pairs are within it is no sum over classes. "
            "Compare heads that were fitted with margin=None."
        )
    batches = labelled_batches(inputs, device_of(model), progress=progress, description="Evidence")
    embedded, labels, n_read = list[Tensor](), list[Tensor](), 0
    for x, codes in batches:
        z = seen_at_head(model, fitted, x).raw.double()
        with rows_before(n_read):
            check_rows(z, spherical=fitted.spherical)
        n_read += len(z)
        embedded.append(nn.functional.normalize(z, dim=-1) if fitted.spherical else z)
        labels.append(codes)
    return pair_loss(torch.cat(embedded), torch.cat(labels), fitted.loss)


def pair_loss(f: Tensor, labels: Tensor, loss: ContrastiveLoss) -> float:
    """Return L of outputs f [N, Z] with classes [N].

    Raises
    ------
    LabelError
        If all are of one class, where the loss has negative pairs.

    Examples
    --------
    >>> f = torch.tensor([[0.0], [2.0], [4.0]])
    >>> loss = ContrastiveLoss.of("euclidean", "positives", normalized=False)
    >>> pair_loss(f, torch.tensor([0, 0, 1]), loss)
    0.8
    """
    codes = labels.unique(return_inverse=True)[1]
    n_classes = int(codes.max()) + 1
    counts = torch.bincount(codes).to(f)
    sums = f.new_zeros(n_classes, f.shape[1]).index_add_(0, codes, f)
    squares = f.new_zeros(n_classes).index_add_(0, codes, f.square().sum(1))
    inside = float((counts * squares - sums.square().sum(1)).sum())
    everywhere = float(len(f) * squares.sum() - sums.sum(0).square().sum())
    same = float(counts.square().sum())
    other = len(f) ** 2 - same
    attract = inside / same
    if not loss.negatives:
        return attract
    if other == 0:
        raise LabelError("all inputs are of one class: this loss needs pairs of two classes.")
    return attract - (everywhere - inside) / other
