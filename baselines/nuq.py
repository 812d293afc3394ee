"""NUQ (Kotelevskii et al. 2022): a kernel estimate of the labels around x, and its own spread.

    w_i = exp(-|x - x_i|^2 / (2 h^2))       of the k nearest training vectors x_i, S = sum_i w_i
    eta_c = (sum_{i: y_i = c} w_i + a) / (S + C a)          Nadaraya-Watson, with a prior count a
    aleatoric  U_a = min_c (1 - eta_c)                      the error of the best guess
    tau_c^2 = eta_c (1 - eta_c) 2^(-Z/2) / S                variance of the estimate eta_c
    epistemic  U_e = 2 sqrt(2/pi) max_c tau_c               bound on what the estimate adds to it
    total      U_t = U_a + U_e

(NeurIPS 2022, arXiv 2202.03101.) Their variance is ``eta_c (1 - eta_c) |K|^2 / (N h^Z p(x))``, with
the kernel density estimate ``p(x) = S / (N (h sqrt(2 pi))^Z)`` and ``|K|^2 = (4 pi)^(-Z/2)``, the
integral of the squared Gaussian kernel: N and h cancel. Far away all w vanish: eta is 1/C there,
and U_e grows without bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.base import Detector, Memory, Sizes
from baselines.base.neighbours import most_similar, unit_rows
from baselines.base.settings import check_counts, check_positive
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import InputError, LabelError

PARTS = ("total", "aleatoric", "epistemic")
N_BANDWIDTHS = 5
ROWS = 1024
"""Training vectors whose neighbours are searched at once."""


@dataclass(eq=False, kw_only=True)
class NUQ(Detector):
    """Labels of the neighbourhood; costs one forward pass and N Z products, keeps N Z numbers.

    ``uncertainty`` is the natural logarithm of U: no other form keeps apart what is far and what
    is farther. The aleatoric one is at most 0, the others have any sign.

    Parameters
    ----------
    part : "total" | "aleatoric" | "epistemic"
        Part of U that is the uncertainty. Default: "total".
    k : int
        Number of neighbours whose w count, or all training vectors if there are fewer; 20 as in the
        code of the authors. Default: 20.
    bandwidth : float > 0 or None
        Bandwidth h of the kernel. None, the default: the best of five, evenly from the mean
        distance of a training vector to its nearest neighbour up to that to its k-th (as the
        authors' code does), by the leave-one-out log-likelihood ``sum_i log eta_{y_i}(x_i)`` of the
        labels (as in likelihood cross-validation, Silverman 1986, section 3.4.4; theirs scores by
        accuracy, which is the same for all candidates where the classes lie apart).
    prior : float > 0
        Prior count a, against w <= 1; 1e-5 as in their code, which adds it to the normalised kernel
        instead: from about 16 dimensions on that is above every w, and eta is 1/C everywhere.
        Default: 1e-5.
    normalise : bool
        Give vectors unit length first. Default: False, as published.

    Raises
    ------
    InputError
        If k, bandwidth or prior is not positive; from ``fit`` without a bandwidth, if all
        neighbours coincide.
    UnknownNameError
        For another part.
    LabelError
        From ``fit``, for a single class.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = NUQ(nn.Linear(4, 2), part="epistemic").fit([(x, y)], progress=False)
    >>> bool(method(x).uncertainty.mean() < method(100 * x).uncertainty.mean())
    True
    """

    part: str = "total"
    k: int = 20
    bandwidth: float | None = None
    prior: float = 1e-5
    normalise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("part", self.part, PARTS)
        check_counts(self, "k")
        check_positive(self, "prior", *(["bandwidth"] if self.bandwidth is not None else []))

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the memory of training vectors with their class numbers, and the bandwidth."""
        return {"memory": Memory("vectors", "labels", "centre", "bandwidth")}

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Store the vectors around their mean, and choose the bandwidth.

        Raises
        ------
        LabelError
            For a single class.
        """
        if int(labels.max()) == 0:
            raise LabelError("labels hold a single class: give two or more.")
        x = unit_rows(vectors) if self.normalise else vectors
        centre = x.double().mean(0)  # distances stay, and what they cancel gets small
        centred = (x.double() - centre).to(x)
        h = self._best_bandwidth(centred, labels) if self.bandwidth is None else self.bandwidth
        memory = self.parts["memory"]
        assert isinstance(memory, Memory)
        memory.store(vectors=centred, labels=labels, centre=centre, bandwidth=centre.new_tensor(h))

    def score(self, vectors: Tensor) -> Tensor:
        """Return ``log U`` [B]."""
        memory: Any = self.parts["memory"]
        x = unit_rows(vectors) if self.normalise else vectors
        x = (x.double() - memory.centre).to(x)
        near = nearest(x, memory.vectors, min(self.k, len(memory.vectors)))
        log_w = -squared_distances(x, memory.vectors, near) / (2 * memory.bandwidth**2)
        n_classes = self.fitted_.sizes.classes
        log_eta, log_rest = label_posterior(log_w, memory.labels[near], n_classes, self.prior)
        log_variance = log_eta + log_rest - x.shape[1] / 2 * math.log(2)
        log_tau = (log_variance.amax(1) - log_w.logsumexp(1)) / 2
        aleatoric = log_rest.amin(1)
        epistemic = math.log(2) + math.log(2 / math.pi) / 2 + log_tau
        total = torch.logaddexp(aleatoric, epistemic)
        return dict(zip(PARTS, (total, aleatoric, epistemic), strict=True))[self.part].to(vectors)

    def _best_bandwidth(self, x: Tensor, labels: Tensor) -> float:
        """Return the candidate with the largest likelihood of the labels, each left out in turn."""
        k = min(self.k, len(x) - 1)
        near = torch.cat([others(rows, x, k) for rows in torch.arange(len(x)).split(ROWS)])
        squares = squared_distances(x, x, near)
        mean = squares.sqrt().mean(0)
        candidates = torch.linspace(float(mean[0]), float(mean[-1]), N_BANDWIDTHS).tolist()
        candidates = [h for h in candidates if h > 0]
        if not candidates:
            raise InputError(
                f"the nearest neighbours of all training vectors ({self.on}) are copies of them: "
                "pass a bandwidth, or data without copies."
            )
        same = labels[near] == labels[:, None]
        log_prior = math.log(self.prior)
        log_all = math.log(int(labels.max()) + 1) + log_prior

        def log_likelihood(h: float) -> float:
            log_w = -squares / (2 * h**2)
            own = log_w.masked_fill(~same, -math.inf).logsumexp(1)
            eta = plus(own, log_prior) - plus(log_w.logsumexp(1), log_all)
            return float(eta.sum())

        return max(candidates, key=log_likelihood)


def nearest(x: Tensor, memory: Tensor, k: int) -> Tensor:
    """Return numbers [B, k] of the nearest vectors [N, Z] to vectors [B, Z]."""
    return most_similar(x, memory, k, -memory.square().sum(1) / 2)[1]


def others(rows: Tensor, x: Tensor, k: int) -> Tensor:
    """Return the nearest vectors [R, k] to the rows [R] of [N, Z], themselves left out.

    Examples
    --------
    >>> others(torch.tensor([0, 2]), torch.tensor([[0.0], [1.0], [3.0]]), 1)
    tensor([[1],
            [1]])
    """
    rows = rows.to(x.device)
    near = nearest(x[rows], x, k + 1)
    itself = near == rows[:, None]  # or none of them, where more than k copies are as near
    return near.gather(1, itself.int().argsort(dim=1, stable=True)[:, :k])


def squared_distances(x: Tensor, memory: Tensor, near: Tensor) -> Tensor:
    """Return ``|x_b - m_n|^2`` [B, k] in float64, for numbers n [B, k]."""
    return torch.stack(
        [(x.double() - memory[column].double()).square().sum(1) for column in near.T], dim=1
    )


def plus(log_a: Tensor, log_b: float) -> Tensor:
    """Return ``log(a + b)``."""
    return torch.logaddexp(log_a, log_a.new_tensor(log_b))


def label_posterior(
    log_w: Tensor, labels: Tensor, n_classes: int, prior: float
) -> tuple[Tensor, Tensor]:
    """Return ``log eta`` and ``log(1 - eta)`` [B, C] of neighbours' log weights and labels [B, k].

    Examples
    --------
    >>> eta, rest = label_posterior(torch.zeros(1, 3), torch.tensor([[0, 0, 1]]), 2, 0.5)
    >>> eta.exp(), rest.exp()  # (2 + 0.5) / 4 and (1 + 0.5) / 4
    (tensor([[0.6250, 0.3750]]), tensor([[0.3750, 0.6250]]))
    """
    largest = log_w.amax(1, keepdim=True)
    sums = log_w.new_zeros(len(log_w), n_classes)
    sums.scatter_add_(1, labels, (log_w - largest).exp())  # [B, C], S_c / w_max
    rest = (sums.sum(1, keepdim=True) - sums).clamp_min(0)
    log_all = plus(log_w.logsumexp(1, keepdim=True), math.log(n_classes * prior))
    log_eta = plus(largest + sums.log(), math.log(prior)) - log_all
    log_rest = plus(largest + rest.log(), math.log((n_classes - 1) * prior)) - log_all
    return log_eta, log_rest
