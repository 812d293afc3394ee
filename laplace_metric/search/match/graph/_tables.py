"""What held-out queries left behind, as tables that a graph reads: comparisons, no search.

With knots (x_1, y_1), ..., (x_n, y_n), x ascending, a score l lies behind knot

    j(l) = #{i : x_i <= l'},    l' = max(l, x_1)
    p(l) = y_j + b_j (l' - x_j),    b_j = (y_{j+1} - y_j) / (x_{j+1} - x_j),  b_n = 0

and the rank of a statistic t among m held-out ones is ``#{i : s_i >= t}``. ONNX has no binary
search: the counts compare with all, B k n and B m numbers at once.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class KnotTable(nn.Module):
    """Scores -> probabilities, linear between knots and flat beyond: ``numpy.interp``.

    Parameters
    ----------
    numbers : Tensor [2, n], float64
        x and y of ``Calibrator`` "isotonic".

    Examples
    --------
    >>> table = KnotTable(torch.tensor([[0.0, 1.0, 3.0], [0.2, 0.4, 0.8]]))
    >>> table(torch.tensor([-5.0, 0.5, 2.0, 9.0]))
    tensor([0.2000, 0.3000, 0.6000, 0.8000])
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    def __init__(self, numbers: Float[Tensor, "2 n"]) -> None:
        super().__init__()
        x, y = numbers
        width = x.diff()
        slope = torch.where(width > 0, y.diff() / width, 0.0)
        for name, values in (("x", x), ("y", y), ("slope", torch.cat([slope, x.new_zeros(1)]))):
            self.register_buffer(name, values.clone())

    def forward(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """p of the scores' shape."""
        raised = logit.maximum(self.x[0])
        j = (self.x <= raised[..., None]).sum(-1) - 1
        return self.y[j] + self.slope[j] * (raised - self.x[j])


class RankTable(nn.Module):
    """Statistics -> p: ``least_common_p_values`` among known queries (its equations).

    Parameters
    ----------
    known : Tensor [m, J]
    """

    columns: Tensor
    others: Tensor

    def __init__(self, known: Float[Tensor, "m J"]) -> None:
        super().__init__()
        self.n, self.size = known.shape
        columns = known.mT.contiguous()  # [J, m]
        at_least = self.n - torch.searchsorted(columns.sort(1).values, columns)
        self.register_buffer("columns", columns)
        self.register_buffer("others", at_least - 1)

    def forward(self, new: Float[Tensor, "B J"]) -> Float[Tensor, " B"]:
        """p [B]."""
        below = [new[:, j, None] >= self.columns[j] for j in range(self.size)]
        ranks = [self.others[j] + below[j].long() for j in range(self.size)]  # [B, m] each
        beside = [(self.columns[j] >= new[:, j, None]).sum(1) for j in range(self.size)]
        as_strange = (_strangeness(ranks, self.n) <= _strangeness(beside, self.n)[:, None]).sum(1)
        return (1 + as_strange).double() / (self.n + 1)


def _strangeness(ranks: list[Tensor], n: int) -> Tensor:
    """The least of J ranks, ties by their sum: small is strange."""
    least, total = ranks[0], ranks[0]
    for rank in ranks[1:]:
        least, total = least.minimum(rank), total + rank
    return least * (len(ranks) * (n + 1) + 1) + total
