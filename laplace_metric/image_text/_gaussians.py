"""Gaussians with diagonal covariances: their distance, inclusion and membership, in closed form.

**Distance.** CSD, of any two, and as a similarity of unit means::

    CSD(1, 2) = E |Z_1 - Z_2|^2 = |mu_1 - mu_2|^2 + tr(S_1 + S_2)
    s(1, 2)   = mu_1 . mu_2 - (tr S_1 + tr S_2) / 2 = 1 - CSD / 2          (unit means)

with S = diag(v), ``log_v`` [.., D] its logarithm (Chun 2024, eq 1; Chun et al. 2025, eq 1 and A.1).
The trace is ``sum_d (v_1 + v_2)``, of variances; eq 1 of the latter prints ``|sigma_1 + sigma_2|``.

**Inclusion.** With ``v = sigma^2``, ``l = log v`` and ``d = mu_1 - mu_2``, a sum over dimensions of

    inc(1, 2) = log int p_1^2 p_2
              = -(log 4 pi + l_1) / 2 - (log pi + S) / 2 - d^2 exp(-S),  S = log(v_1 + 2 v_2)

    H(1, 2) = inc(1, 2) - inc(2, 1)
            = [l_2 - l_1 + log(2 v_1 + v_2) - log(v_1 + 2 v_2)] / 2
              + d^2 (v_2 - v_1) / ((v_1 + 2 v_2) (2 v_1 + v_2))

(Chun et al. 2025, eqs 3 and 4, whose ``-2 log v_1 - log v_2`` is half of what it prints.) S is
computed by ``logaddexp``, and H is divided through by ``exp(max(l_1, l_2))``: v itself underflows.

H is no test of inclusion: in each dimension it has the sign of ``v_2 - v_1`` whatever the means,
and it grows with their distance. Show it next to random pairs; ``inc`` responds to the means.

**Membership** (this project's). A density spreads thinner as it widens. A region does not::

    g_t(x)   = exp(-(x - mu_t)' S_t^-1 (x - mu_t) / 2)          membership, 1 at the mean
    m(t | x) = E g_t(x),  x ~ N(mu, S)
             = sqrt(det S_t / det(S + S_t)) exp(-d' (S + S_t)^-1 d / 2),  d = mu - mu_t

It grows with S_t. It is ``Vol(t and x) / Vol(x)`` for unnormalised Gaussians, as the conditional
probability of box lattices is for boxes (Vilnis et al. 2018), and Bayes' rule holds exactly, with
the volume as the prior: ``m(t | u) / m(u | t) = sqrt(det S_t / det S_u)``.

A head on frozen or trained features: the mean of a Gaussian on the unit sphere, and its width.

    h = trunk(features)     z = W h + b     mu = z / |z|     log v = U u + c

with ``u = h``; where an encoder has two tokens, h is of [CLS] and u of [UNC] (Chun et al. 2025,
section 3.1). The bias c starts at ``log(0.35 / D)``, a trace of .35 whatever D: at much smaller
variances their gradient vanishes (at log v = -10 and D = 384 the trace is .017 and stays there).

Does a text include an image? ``inc`` as a probability, compared with random pairs.

``inc`` of one pair says nothing by itself: its level follows the widths of both. So it is read
against pairs that belong together and as many random ones: the probability is a logistic regression
between the two (Platt 1999), at even odds, and the control the share of random pairs that reach the
same score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.validation import check_name
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.image_text._pairs import ImageTextPairs

ENGINES = ("inner", "l2")
LOG_2, LOG_PI, LOG_4_PI = math.log(2), math.log(math.pi), math.log(4 * math.pi)
BLOCK_BYTES = 2**24
"""Of the differences of pairs that are computed at once."""


def csd(
    mu_1: Float[Tensor, "*#B D"],
    log_v_1: Float[Tensor, "*#B D"],
    mu_2: Float[Tensor, "*#B D"],
    log_v_2: Float[Tensor, "*#B D"],
) -> Float[Tensor, "*C"]:
    """``E |Z_1 - Z_2|^2`` [...] of independent Gaussians; batches broadcast.

    Examples
    --------
    >>> mu, log_v = torch.eye(2), torch.zeros(2, 2)
    >>> csd(mu, log_v, mu.flip(0), log_v)
    tensor([6., 6.])
    """
    return (mu_1 - mu_2).square().sum(-1) + (log_v_1.exp() + log_v_2.exp()).sum(-1)


def csd_similarity(
    mu_1: Float[Tensor, "B D"],
    log_v_1: Float[Tensor, "B D"],
    mu_2: Float[Tensor, "C D"],
    log_v_2: Float[Tensor, "C D"],
) -> Float[Tensor, "B C"]:
    """``s(b, c) = mu_b . mu_c - (tr S_b + tr S_c) / 2`` [B, C] for unit means; at most 1.

    Examples
    --------
    >>> csd_similarity(torch.eye(2), torch.zeros(2, 2), torch.eye(2), torch.zeros(2, 2))
    tensor([[-1., -2.],
            [-2., -1.]])
    """
    trace_1, trace_2 = (log_v.exp().sum(-1) for log_v in (log_v_1, log_v_2))
    return mu_1 @ mu_2.mT - (trace_1[:, None] + trace_2) / 2


def similarities(a: Embedding, b: Embedding) -> Float[Tensor, "B C"]:
    """``csd_similarity`` of all pairs of embeddings [B, C]; the cosine without variances."""
    return csd_similarity(a.mean, a.variance.log(), b.mean, b.variance.log())


def csd_query(mu: Float[Tensor, "B D"], engine: str = "inner") -> Float[Tensor, "B D_plus_1"]:
    """Queries [B, D + 1] for a vector engine whose gallery is of ``csd_gallery``.

    Parameters
    ----------
    mu : Tensor [B, D]
        Unit means.
    engine : "inner" | "l2"
        What the engine ranks by.

    Raises
    ------
    UnknownNameError
        For another engine.

    Examples
    --------
    >>> csd_query(torch.eye(2))
    tensor([[1., 0., 1.],
            [0., 1., 1.]])
    """
    check_name("engine", engine, ENGINES)
    last = torch.ones_like if engine == "inner" else torch.zeros_like
    return torch.cat([mu, last(mu[:, :1])], 1)


def csd_gallery(
    mu: Float[Tensor, "C D"], log_v: Float[Tensor, "C D"], engine: str = "inner"
) -> Float[Tensor, "C D_plus_1"]:
    """Items [C, D + 1]: one more coordinate, by which any engine ranks as CSD does.

    ``-tr S / 2`` for inner products, ``sqrt(tr S)`` for Euclidean distance.

    Raises
    ------
    UnknownNameError
        For another engine.

    Examples
    --------
    >>> csd_gallery(torch.eye(2), torch.zeros(2, 2))
    tensor([[ 1.,  0., -1.],
            [ 0.,  1., -1.]])
    """
    check_name("engine", engine, ENGINES)
    trace = log_v.exp().sum(-1, keepdim=True)
    return torch.cat([mu, -trace / 2 if engine == "inner" else trace.sqrt()], 1)


def log_inclusion(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """``inc(1, 2) = log int p_1^2 p_2`` [...]: large where 1 lies inside 2. In nats.

    Examples
    --------
    >>> mu, wide, narrow = torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), -4.0)
    >>> bool(log_inclusion(mu, narrow, mu, wide) > log_inclusion(mu, wide, mu, narrow))
    True
    """
    s = torch.logaddexp(log_v_1, log_v_2 + LOG_2)
    d = mu_1 - mu_2
    inc = -(LOG_4_PI + log_v_1) / 2 - (LOG_PI + s) / 2 - (d * (-s / 2).exp()).square()
    return inc.sum(-1)


def inclusion_difference(
    mu_1: Float[Tensor, "*B D"],
    log_v_1: Float[Tensor, "*B D"],
    mu_2: Float[Tensor, "*B D"],
    log_v_2: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """``H(1, 2) = inc(1, 2) - inc(2, 1)`` [...] in nats: above 0 says that 2 is the wider one.

    Examples
    --------
    >>> mu, wide = torch.zeros(1, 1), torch.zeros(1, 1)
    >>> bool(inclusion_difference(mu, wide - 4, mu + 9, wide) > 0)  # nowhere near, and yet
    True
    """
    log_ratio = log_v_2 - log_v_1
    s_12 = torch.logaddexp(log_v_1, log_v_2 + LOG_2)
    s_21 = torch.logaddexp(log_v_2, log_v_1 + LOG_2)
    m = torch.maximum(log_v_1, log_v_2)
    v_1, v_2 = (log_v_1 - m).exp(), (log_v_2 - m).exp()
    d = (mu_1 - mu_2) * (-m / 2).exp()
    distance = d.square() * (v_2 - v_1) / ((v_1 + 2 * v_2) * (2 * v_1 + v_2))
    return ((log_ratio + s_21 - s_12) / 2 + distance).sum(-1)


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


# A head on frozen or trained features: the mean of a Gaussian on the unit sphere, and its width.

FIRST_TRACE = 0.35


class HeadOutput(NamedTuple):
    """Outputs for B inputs: inputs of the projections, raw means, log variances.

    Parameters
    ----------
    inputs : Tensor [B, H]
    raw : Tensor [B, D]
    log_v : Tensor [B, D]
        Minus infinity for a head without variances.
    """

    inputs: Float[Tensor, "B H"]
    raw: Float[Tensor, "B D"]
    log_v: Float[Tensor, "B D"]

    @property
    def mu(self) -> Float[Tensor, "B D"]:
        """Unit means [B, D]."""
        return nn.functional.normalize(self.raw, dim=-1)

    @property
    def trace(self) -> Float[Tensor, " B"]:
        """``tr S`` [B]."""
        return self.log_v.exp().sum(-1)


class GaussianHead(nn.Module):
    """Features [B, F], or [B, 2, F] of two tokens, -> ``HeadOutput``.

    Two tokens, [CLS] and [UNC], go through the same trunk, then each through its own projection;
    ``inputs`` are of [CLS].

    Parameters
    ----------
    size : int
        F.
    dim : int
        D.
    dropout : float in [0, 1)
        Of the features, while training.
    tokens : "head" | "uncertainty"
        One vector an input, or two tokens.
    probabilistic : bool
        Whether there are variances.
    layer_norm : bool
        Of the features, first of all.
    first_trace : float > 0
        About ``tr S`` before training.

    Examples
    --------
    >>> out = GaussianHead(8, 4)(torch.randn(3, 8))
    >>> out.mu.norm(dim=1).allclose(torch.ones(3)), out.trace.shape
    (True, torch.Size([3]))
    """

    def __init__(
        self,
        size: int,
        dim: int,
        dropout: float = 0.0,
        *,
        tokens: str = "head",
        probabilistic: bool = True,
        layer_norm: bool = True,
        first_trace: float = FIRST_TRACE,
    ) -> None:
        super().__init__()
        self.size, self.two_tokens = size, tokens == "uncertainty"
        norm = [nn.LayerNorm(size)] if layer_norm else []
        self.trunk = nn.Sequential(*norm, nn.Dropout(dropout))
        self.mean = nn.Linear(size, dim)
        self.log_variance = nn.Linear(size, dim) if probabilistic else None
        if self.log_variance is not None:
            nn.init.normal_(self.log_variance.weight, std=0.1 / math.sqrt(size))
            nn.init.constant_(self.log_variance.bias, math.log(first_trace / dim))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the features of one input."""
        return (2, self.size) if self.two_tokens else (self.size,)

    def entering(self, features: Tensor) -> Float[Tensor, "B H"]:
        """Return the input of the projections, h; with two tokens, h next to u [B, 2 H]."""
        entering: Tensor = self.trunk(features).flatten(1)
        return entering

    def forward(self, features: Float[Tensor, "B ..."]) -> HeadOutput:
        """Means and log variances of a batch."""
        x = self.trunk(features)
        h, u = x.unbind(1) if self.two_tokens else (x, x)
        raw = self.mean(h)
        if self.log_variance is None:
            return HeadOutput(h, raw, torch.full_like(raw, -torch.inf))
        return HeadOutput(h, raw, self.log_variance(u))


# Does a text include an image? ``inc`` as a probability, compared with random pairs.

WEAK = 1e4
"""Inverse strength of the penalty: only there so that separable scores have a solution."""
MOST_CONTROLS = 10_000
BLOCK = 1024
"""Pairs whose texts are drawn at once."""


@dataclass(frozen=True)
class Inclusion:
    """Inclusion of B pairs.

    Parameters
    ----------
    score : Tensor [B]
        ``inc / D`` in nats a dimension.
    probability : Tensor [B]
        That the pair belongs together, if it does as often as not.
    control : Tensor [B]
        Share of random pairs that score at least as high, in (0, 1].
    """

    score: Float[Tensor, " B"]
    probability: Float[Tensor, " B"]
    control: Float[Tensor, " B"]


@dataclass(frozen=True)
class InclusionCalibration:
    """A logistic regression on ``inc / D``, and the scores of random pairs.

    Parameters
    ----------
    slope, offset : float
        Of the logit.
    controls : Tensor [R], float64
        Scores of random pairs, ascending.
    auroc : float
        Own against random pairs, of those that it was fitted on.

    Examples
    --------
    >>> calibration = InclusionCalibration.of(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 2.5]))
    >>> answer = calibration(torch.tensor([-1.0, 2.2, 9.0]))
    >>> answer.control, bool((answer.probability.diff() > 0).all())
    (tensor([1.0000, 0.6667, 0.3333], dtype=torch.float64), True)
    """

    slope: float
    offset: float
    controls: Tensor
    auroc: float

    @classmethod
    def of(cls, own: Float[Tensor, " P"], random: Float[Tensor, " R"]) -> InclusionCalibration:
        """From the scores of pairs that belong together and of pairs that do not."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score

        scores = torch.cat([own, random]).double().cpu().numpy()
        is_own = np.repeat([1, 0], [len(own), len(random)])
        weight = np.where(is_own, 1 / len(own), 1 / len(random)) * len(scores) / 2
        centre, scale = float(scores.mean()), float(scores.std()) or 1.0
        x = (scores[:, None] - centre) / scale
        fit = LogisticRegression(C=WEAK, max_iter=1000).fit(x, is_own, sample_weight=weight)
        slope = float(fit.coef_[0, 0]) / scale
        offset = float(fit.intercept_[0]) - slope * centre
        controls = random.double().cpu().sort().values
        return cls(
            slope,
            offset,
            controls[:: -(-len(controls) // MOST_CONTROLS)],
            float(roc_auc_score(is_own, scores)),
        )

    def __call__(self, score: Float[Tensor, " B"]) -> Inclusion:
        """The probability and the control of scores."""
        exact = score.double()
        below = torch.searchsorted(self.controls.to(exact.device), exact.contiguous())
        n = len(self.controls)
        control = (n - below + 1) / (n + 1)
        return Inclusion(score, torch.sigmoid(self.slope * exact + self.offset), control.double())


def inclusion_score(a: Embedding, b: Embedding) -> Float[Tensor, " B"]:
    """``inc(a, b) / D`` of B pairs, row by row.

    Raises
    ------
    InputError
        For batches of different length, and embeddings without variances.
    """
    if len(a) != len(b):
        raise InputError(f"a has {len(a)} rows and b {len(b)}: pass pairs, row by row.")
    variances = a.variance, b.variance
    if not all(bool((v > 0).all()) for v in variances):
        raise InputError("embeddings have no variance: inclusion needs objective='prolip'.")
    inc = log_inclusion(a.mean, variances[0].log(), b.mean, variances[1].log())
    return inc / a.mean.shape[1]


def random_partners(
    pairs: ImageTextPairs, generator: torch.Generator | None
) -> tuple[Int[Tensor, " R"], Int[Tensor, " R"]]:
    """For each pair its image and a random text that is not its own, where there is one.

    Raises
    ------
    InputError
        If every image has every text.
    """
    images, texts, every = [], [], torch.arange(pairs.n_texts)
    for i in pairs.pairs[:, 0].split(BLOCK):
        free = (~pairs.match(i, every)).float()
        rows = free.any(1).nonzero().flatten()
        if len(rows):
            images.append(i[rows])
            texts.append(torch.multinomial(free[rows], 1, generator=generator).squeeze(1))
    if not images:
        raise InputError("every image has every text: there is no random pair to compare with.")
    return torch.cat(images), torch.cat(texts)
