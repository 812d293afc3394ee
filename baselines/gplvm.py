"""Gaussian-process latent variables for frozen embeddings (Venkataramanan et al. 2025, GroVE).

    z_nd = f_d(x_n) + noise,   f_d ~ GP(0, k),   k(x, x') = a exp(-sum_q (x_q - x'_q)^2 / (2 l_q^2))

("Probabilistic Embeddings for Frozen Vision-Language Models", arXiv 2505.05163; the model of
Lawrence 2004.) Each training input has a latent point x_n [Q] that explains its vector z_n, and, in
the paper, by a second Gaussian process the text that belongs to its image; a divergence draws
the predictions of both together. An embedder has one kind of input, for which both processes are
one: x_n explains its own vector and, with weight w, the average vector z_p of another input of its
class. The likelihoods of both are that of their mean under less noise, up to numbers without f:

    (z_n - f)^2 + w E_p (z_p - f)^2 = (1 + w) (t_n - f)^2 + w / (1 + w) (z_n - m_n)^2 + w v_n
    t_n = (z_n + w m_n) / (1 + w)           m_n, v_n mean and variance of the others of the class

The paper maximises a variational bound with inducing points u = f(Z). With Gaussian noise its best
q(u) is known (Titsias 2009, eq. 9), and what is left is a bound of the parameters alone:

    F = log N(Y; 0, Q + s^2 I) - (1 / 2 s^2) tr(K - Q)        Q = K_fu K_uu^-1 K_uf
    A = L^-1 K_uf / s,  L L^T = K_uu,  B = I + A A^T = M M^T,  c = M^-1 A Y / s
    F = -(N D/2) log 2 pi s^2 - D sum log M_ii + (|c|^2 - |Y|^2 / s^2) / 2
        - (D/2) (tr K / s^2 - tr A A^T)

and for a new latent point, with k_u = K_u(x) and v = L^-1 k_u, w = M^-1 v:

    mean(x) = w^T c,   var(x) = k(x, x) - |v|^2 + |w|^2

A new vector z gets the latent point of largest ``log N(z; mean(x), var(x) + s^2) + log N(x; 0, I)``
by gradient steps from that of the nearest training vector. Its embedding is mean(x), and its
uncertainty the sum of the variances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from baselines.base import UNSAVED, Detector, Memory, Sizes, Training
from baselines.base.neighbours import most_similar, unit_rows
from baselines.base.parts import vectors as vectors_of
from baselines.base.settings import check_counts, check_positive
from laplace_metric._utils.randomness import own_randomness
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations
from laplace_metric.models._modules import device_of
from laplace_metric.training import descend

JITTER = 1e-8
"""Added to the diagonal of K_uu, over its variance: two inducing points may coincide."""
NOISE, SHORTEST = 0.1, 1e-6
"""Share of the spread that is noise at the start; least noise variance over the spread."""


def rbf_kernel(
    x: Float[Tensor, "N Q"], y: Float[Tensor, "M Q"], log_lengths: Tensor, log_variance: Tensor
) -> Float[Tensor, "N M"]:
    """Return ``a exp(-sum_q (x_q - y_q)^2 / (2 l_q^2))`` [N, M].

    Examples
    --------
    >>> zero = torch.zeros(())
    >>> rbf_kernel(torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), zero, zero)
    tensor([[1.0000, 0.6065]])
    """
    left, right = (v / log_lengths.exp() for v in (x, y))
    distances = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    return (log_variance - distances.square() / 2).exp()


@dataclass(frozen=True)
class Across:
    """Vectors of the others of a class, which a latent point explains, too.

    Parameters
    ----------
    weight : float > 0
        Weight w of their likelihood.
    means, variances : Tensor [N, D]
        Mean and variance of the vectors of the other inputs of the class.

    Examples
    --------
    >>> y = torch.tensor([[0.0], [2.0], [4.0], [9.0]])
    >>> others = Across.of(1.0, y, torch.tensor([0, 0, 0, 1]))
    >>> others.means[:, 0], others.variances[:, 0]  # who is alone is its own other
    (tensor([3., 2., 1., 9.]), tensor([1., 4., 1., 0.]))
    """

    weight: float
    means: Tensor
    variances: Tensor

    @classmethod
    def of(cls, weight: float, y: Tensor, labels: Tensor) -> Across:
        """Return the moments of the others, for vectors [N, D] and class numbers [N]."""
        counts = labels.bincount()
        others = (counts - 1).clamp_min(1)[labels, None]
        alone = (counts == 1)[labels, None]

        def of_others(values: Tensor) -> Tensor:
            totals = values.new_zeros(len(counts), values.shape[1]).index_add_(0, labels, values)
            return torch.where(alone, values, (totals[labels] - values) / others)

        means = of_others(y)
        return cls(weight, means, (of_others(y.square()) - means.square()).clamp_min(0))

    def targets(self, y: Tensor) -> Tensor:
        """Return t [N, D]."""
        return (y + self.weight * self.means) / (1 + self.weight)


class SparseGP(nn.Module):
    """Gaussian processes with one kernel, one for each output, through inducing points.

    Parameters
    ----------
    inducing : Tensor [M, Q]
        Inducing inputs Z at the start; they are learnt.
    log_lengths : Tensor [Q]
        Logarithms of the lengths l of the kernel.
    log_variance, log_noise : float
        Logarithms of its variance a, and of the variance s^2 of the noise.

    Examples
    --------
    >>> x, y = torch.randn(6, 1), torch.randn(6, 2)
    >>> gp = SparseGP(x, torch.zeros(1), 0.0, -2.0)  # as many inducing points as inputs: exact
    >>> k = rbf_kernel(x, x, torch.zeros(1), torch.zeros(())) + torch.eye(6) * math.exp(-2)
    >>> exact = torch.distributions.MultivariateNormal(torch.zeros(6), k).log_prob(y.T).sum()
    >>> bool((gp.bound(x, y) - exact).abs() < 1e-2)
    True
    """

    def __init__(
        self, inducing: Tensor, log_lengths: Tensor, log_variance: float, log_noise: float
    ) -> None:
        super().__init__()
        self.inducing = nn.Parameter(inducing.clone())
        self.log_lengths = nn.Parameter(log_lengths.clone())
        self.log_variance = nn.Parameter(inducing.new_tensor(log_variance))
        self.log_noise = nn.Parameter(inducing.new_tensor(log_noise))

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """Return k [N, M]."""
        return rbf_kernel(x, y, self.log_lengths, self.log_variance)

    def bound(
        self, x: Float[Tensor, "N Q"], y: Float[Tensor, "N D"], across: Across | None = None
    ) -> Tensor:
        """Return the lower bound F of ``log p(Y | X)``, in nats, summed over outputs.

        With ``across`` it is the bound of both likelihoods.
        """
        n, size = y.shape
        log_noise: Tensor = self.log_noise
        lost, targets = torch.zeros_like(log_noise), y
        if across is not None:
            w = across.weight
            apart = (y - across.means).square().sum() * w / (1 + w)
            lost = (apart + w * across.variances.sum()) / (2 * self.log_noise.exp())
            lost = lost + w * n * size * (math.log(2 * math.pi) + self.log_noise) / 2
            lost = lost + n * size * math.log(1 + w) / 2  # of the mean's density, not of both
            targets, log_noise = across.targets(y), self.log_noise - math.log(1 + w)
        noise = log_noise.exp()
        _, a, factor, c = self._solve(x, targets, log_noise)
        log_det = factor.diagonal().log().sum()
        fit = (c.square().sum() - targets.square().sum() / noise) / 2
        slack = n * self.log_variance.exp() / noise - a.square().sum()
        scale = n * size * (math.log(2 * math.pi) + log_noise) / 2
        return -scale - size * log_det + fit - size * slack / 2 - lost

    def condition(self, x: Tensor, y: Tensor, across: Across | None = None) -> dict[str, Tensor]:
        """Return L [M, M], M [M, M] and c [M, D], from which ``predict`` goes on."""
        log_noise: Tensor = self.log_noise
        if across is not None:
            y, log_noise = across.targets(y), log_noise - math.log(1 + across.weight)
        lower, _, factor, c = self._solve(x, y, log_noise)
        return {"lower": lower, "factor": factor, "weights": c}

    def predict(
        self, x: Float[Tensor, "B Q"], lower: Tensor, factor: Tensor, weights: Tensor
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, " B"]]:
        """Return mean [B, D] and variance [B] of f at new inputs, without the noise."""
        v = torch.linalg.solve_triangular(lower, self.kernel(self.inducing, x), upper=False)
        w = torch.linalg.solve_triangular(factor, v, upper=False)
        variance = self.log_variance.exp() - v.square().sum(0) + w.square().sum(0)
        return w.mT @ weights, variance.clamp_min(0)

    def _solve(
        self, x: Tensor, y: Tensor, log_noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return L, A, M and c."""
        eye = torch.eye(len(self.inducing), dtype=y.dtype, device=y.device)
        inner = self.kernel(self.inducing, self.inducing)
        lower = torch.linalg.cholesky(inner + JITTER * self.log_variance.exp() * eye)
        sigma = (log_noise / 2).exp()
        a = torch.linalg.solve_triangular(lower, self.kernel(self.inducing, x), upper=False) / sigma
        factor = torch.linalg.cholesky(eye + a @ a.mT)
        c = torch.linalg.solve_triangular(factor, a @ y, upper=False) / sigma
        return lower, a, factor, c


@dataclass(eq=False, kw_only=True)
class GPLVM(Detector):
    """Latent points under Gaussian processes; ``fit`` costs N M (M + D) products in each step.

    ``mean`` [B, Z] is the vector that the latent point explains, of unit length if spherical, and
    has to be searched in a gallery that went through this method, too. ``uncertainty`` is Z times
    the variance of f at the latent point plus the noise, in squared units of the (unit) vectors. A
    query costs one forward pass, N Z products for its start and ``search_steps`` predictions, all
    in float64.

    Parameters
    ----------
    latent : int
        Dimension Q of the latent points. Default: 8.
    n_inducing : int
        Number M of inducing points; no more than N are used. Default: 64.
    across : float >= 0
        Weight w of the other input of a class. 0 learns from single inputs and ignores labels.
        Default: 1.
    search_steps : int
        Number of gradient steps for a new latent point. Default: 50.
    training : Training
        Settings of the training; an epoch is one step over all inputs. Default: 200 epochs with
        learning rate 0.02.

    Attributes
    ----------
    losses_ : list of float
        Minus the bound of each step, in nats for each number of the vectors.

    Raises
    ------
    InputError
        For settings out of range; from ``fit``, for vectors that are all equal.

    Examples
    --------
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> method = GPLVM(nn.Linear(4, 3), latent=2, training=Training(epochs=5))
    >>> e = method.fit([(x, y)], progress=False)(x)
    >>> e.mean.shape, e.variance.shape
    (torch.Size([60, 3]), torch.Size([60, 3]))
    """

    latent: int = 8
    n_inducing: int = 64
    across: float = 1.0
    search_steps: int = 50
    training: Training = Training(epochs=200, learning_rate=0.02)  # noqa: RUF009 (frozen)
    losses_: list[float] = field(default_factory=list, init=False, repr=False, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "latent", "n_inducing", "search_steps")
        if self.across:
            check_positive(self, "across")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return memories: of the training set, of the processes, of what they were fitted to."""
        return {
            "data": Memory("vectors", "points", "centre"),
            "process": Memory("inducing", "log_lengths", "log_variance", "log_noise"),
            "solved": Memory("lower", "factor", "weights"),
        }

    def fit(self, loader: Iterable[Any], *, progress: bool = False) -> GPLVM:
        """Gather a loader of ``(inputs, labels)``, and learn latent points and processes.

        Raises
        ------
        HeadError, LabelError, NonFiniteError, EmptyLoaderError, InputError
        """
        generator = torch.Generator().manual_seed(self.training.seed)
        with own_randomness(generator, device_of(self.model)):
            super().fit(loader, progress=progress)
        return self

    def learn(self, vectors: Tensor, labels: Tensor) -> None:
        """Maximise the bound over latent points, inducing points, kernel and noise."""
        z = self._compared(vectors)
        centre = z.mean(0)
        y = z - centre
        spread = y.square().mean()
        if not float(spread) > 0:
            raise InputError("all vectors are equal: there is no latent point to learn.")
        points = self._start(y)
        with torch.enable_grad():
            x = nn.Parameter(points)
            chosen = torch.randperm(len(y))[: self.n_inducing].to(y.device)
            log_spread = float(spread.log())
            gp = SparseGP(
                points[chosen], points.new_zeros(points.shape[1]), log_spread,
                log_spread + math.log(NOISE),
            )  # fmt: skip
            across = Across.of(self.across, y, labels) if self.across else None
            self.losses_ = self._train(gp, x, y, across)
        with torch.no_grad():
            solved = gp.condition(x.detach(), y, across)
        stored: Any = self.parts["data"]
        stored.store(vectors=z, points=x.detach(), centre=centre)
        process: Any = self.parts["process"]
        process.store(**{name: value.detach() for name, value in gp.named_parameters()})
        memory: Any = self.parts["solved"]
        memory.store(**solved)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return Gaussians around what the latent points explain."""
        vectors = vectors_of(activations, self.on)
        data: Any = self.parts["data"]
        gp, solved = self._process()
        x = self._latent_of(gp, solved, self._compared(vectors))
        mean, variance = gp.predict(x, **solved)
        mean = mean + data.centre
        if self.spherical:
            mean = unit_rows(mean)
        total = (variance + gp.log_noise.exp()).to(vectors)
        return Embedding(Gaussian(mean.to(vectors), total[:, None].expand(-1, mean.shape[1])))

    def score(self, vectors: Tensor) -> Tensor:
        """Return the sum of the variances [B]."""
        gp, solved = self._process()
        z = self._compared(vectors)
        _, variance = gp.predict(self._latent_of(gp, solved, z), **solved)
        return (z.shape[1] * (variance + gp.log_noise.exp())).to(vectors)

    def _compared(self, vectors: Tensor) -> Tensor:
        """Return vectors in float64, of unit length where embeddings are directions."""
        vectors = vectors.double()
        return unit_rows(vectors) if self.spherical else vectors

    def _start(self, y: Tensor) -> Tensor:
        """Return the first principal components, each of variance 1, as latent points [N, Q]."""
        left, values, _ = torch.linalg.svd(y, full_matrices=False)
        rank = int((values > 1e-9 * values[0]).sum())
        points = y.new_zeros(len(y), self.latent)
        used = min(rank, self.latent)
        points[:, :used] = left[:, :used] * math.sqrt(len(y))
        return points

    def _train(
        self, gp: SparseGP, x: nn.Parameter, y: Tensor, across: Across | None
    ) -> list[float]:
        optimizer, scheduler = self.training.optimize([x, *gp.parameters()])
        least = float(y.square().mean().log()) + math.log(SHORTEST)
        losses = []
        for _ in range(self.training.epochs):
            # log N(x; 0, I) keeps the latent points where new ones are searched
            value = gp.bound(x, y, across) - x.square().sum() / 2
            losses.append(descend(-value / y.numel(), optimizer))
            scheduler.step()
            with torch.no_grad():
                gp.log_noise.clamp_min_(least)
        return losses

    def _process(self) -> tuple[SparseGP, dict[str, Tensor]]:
        stored: Any = self.parts["process"]
        gp = SparseGP(
            stored.inducing, stored.log_lengths, float(stored.log_variance), float(stored.log_noise)
        ).requires_grad_(False)
        solved = {name: value.double() for name, value in self.parts["solved"].named_buffers()}
        return gp.double(), solved

    def _latent_of(self, gp: SparseGP, solved: dict[str, Tensor], z: Tensor) -> Tensor:
        """Return the latent point [B, Q] of each vector; rows do not depend on one another."""
        data: Any = self.parts["data"]
        memory = data.vectors.double()
        offset = -memory.square().sum(1) / 2
        _, nearest = most_similar(z, memory, 1, offset)
        start = data.points.double()[nearest[:, 0]]
        target = z - data.centre

        def log_joint(x: Tensor) -> Tensor:
            mean, variance = gp.predict(x, **solved)
            total = variance + gp.log_noise.exp()
            error = (target - mean).square().sum(1) / total
            return -(z.shape[1] * total.log() + error + x.square().sum(1)) / 2

        best, value = start, log_joint(start)
        with torch.enable_grad():
            x = nn.Parameter(start.clone())
            optimizer = torch.optim.Adam([x], 0.05)  # coordinate by coordinate: no batch in it
            for _ in range(self.search_steps):
                optimizer.zero_grad()
                (-log_joint(x).sum()).backward()
                optimizer.step()
                with torch.no_grad():
                    now = log_joint(x)
                    better = now > value
                    best = torch.where(better[:, None], x, best)
                    value = torch.where(better, now, value)
        lost = ~z.isfinite().all(1, keepdim=True)  # else these would be the point they start from
        return best.masked_fill(lost, math.nan).detach()
