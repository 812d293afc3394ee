"""Variances for embeddings that are fixed: a generalised Gaussian around each, after the fact.

ProbVLM (Upadhyay et al. 2023) leaves the encoders alone. Two small networks take an embedding z
to mu, alpha and beta of each dimension, and maximise the density of the embeddings that belong
to it, those of the other side and its own:

    p(x) = beta / (2 alpha Gamma(1 / beta)) exp(-(|x - mu| / alpha)^beta)
    variance = alpha^2 Gamma(3 / beta) / Gamma(1 / beta)

(beta = 2 is a Gaussian, beta = 1 a Laplace density.) With ``residual`` mu = z + a small network's
output, and the own embedding is a second target; else mu = z, for which the own embedding says
nothing: its density at mu grows without bound as alpha goes to 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.randomness import Seed, own_randomness
from laplace_metric._utils.validation import as_tensor, check_count, check_positive
from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.image_text._prompts import check_embeddings

LOG_2 = 0.6931471805599453
LEAST, MOST = 0.3, 4.0
"""Of beta: outside, gradients vanish or explode."""
SMALL = 1e-6
"""Least |x - mu| in training: below beta = 1 the gradient has a pole at 0."""
ALPHA = 0.1
"""At the start."""


def generalised_gaussian_nll(
    x: Float[Tensor, "*B D"],
    mu: Float[Tensor, "*B D"],
    log_alpha: Float[Tensor, "*B D"],
    beta: Float[Tensor, "*B D"],
) -> Float[Tensor, "*B"]:
    """Return ``-log p(x)`` [...], the sum over dimensions, in nats.

    Examples
    --------
    >>> zero, two = torch.zeros(1, 1), torch.full((1, 1), 2.0)
    >>> generalised_gaussian_nll(zero, zero, zero, two)  # log sqrt(pi)
    tensor([0.5724])
    """
    power = ((x - mu).abs() * (-log_alpha).exp()).pow(beta)
    return (power + log_alpha - beta.log() + LOG_2 + torch.lgamma(1 / beta)).sum(-1)


def generalised_gaussian_variance(
    log_alpha: Float[Tensor, "*B D"], beta: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B D"]:
    """Return ``alpha^2 Gamma(3 / beta) / Gamma(1 / beta)``.

    Examples
    --------
    >>> generalised_gaussian_variance(torch.zeros(1, 1), torch.full((1, 1), 2.0))
    tensor([[0.5000]])
    """
    return (2 * log_alpha + torch.lgamma(3 / beta) - torch.lgamma(1 / beta)).exp()


class _Head(nn.Module):
    """z [B, D] -> mu, log alpha, beta [B, D]."""

    def __init__(self, dim: int, hidden: int, *, residual: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.width = nn.Linear(hidden, 2 * dim)
        nn.init.normal_(self.width.weight, std=0.01)
        nn.init.constant_(self.width.bias, 0.0)
        self.shift = nn.Linear(hidden, dim) if residual else None
        if self.shift is not None:
            nn.init.normal_(self.shift.weight, std=0.001)
            nn.init.zeros_(self.shift.bias)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(z)
        log_alpha, raw = self.width(h).chunk(2, -1)
        beta = LEAST + (MOST - LEAST) * torch.sigmoid(raw)
        mu = z if self.shift is None else z + self.shift(h)
        return mu, log_alpha + torch.tensor(ALPHA).log().to(z), beta


class ProbVLM:
    """Variances for the embeddings of any image-text model, which stays as it is.

    Parameters
    ----------
    hidden : int
        Number of units of each network. Default: 128.
    residual : bool
        True moves the means, too. False, the default: only variances are learnt, and the ranking of
        cosines stays.
    own : float > 0
        Weight of the own embedding's likelihood, next to the other side's; with ``residual`` only.
        Default: 1.

    Raises
    ------
    InputError
        For numbers out of range.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> points = torch.nn.functional.normalize(torch.randn(8, 4, generator=g), dim=1)
    >>> e = Embedding(Gaussian(points, torch.zeros(8, 4)))
    >>> pairs = torch.arange(8)[:, None].expand(8, 2)
    >>> post = ProbVLM(hidden=8).fit(e, e[torch.arange(8).flip(0)], pairs, epochs=3, seed=0)
    >>> post.embed_image(e).uncertainty.shape
    torch.Size([8])
    """

    def __init__(self, hidden: int = 128, *, residual: bool = False, own: float = 1.0) -> None:
        self.hidden = check_count("hidden", hidden)
        self.residual, self.own = bool(residual), check_positive("own", own)
        self.losses: list[float] = []
        self._heads: tuple[_Head, _Head] | None = None

    def fit(
        self,
        image: Embedding,
        text: Embedding,
        pairs: Int[Tensor, "P two"],
        *,
        epochs: int = 20,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        seed: Seed = None,
    ) -> ProbVLM:
        """Train both networks on pairs of embeddings; returns itself.

        Parameters
        ----------
        image, text : Embedding [N], [M]
            Embeddings of both sides; only their means count.
        pairs : whole numbers [P, 2]
            Rows (image, text) that belong together; any number on either side.
        epochs, batch_size : int
            Number of passes over the pairs, and number of pairs of a batch. Default: 20 and 512.
        learning_rate : float
            Learning rate of Adam. Default: 0.001.
        seed : torch.Generator, int or None
            CPU generator or seed of the weights and the order. None, the default: a new one, seeded
            from torch's global state.

        Raises
        ------
        InputError
            For rows that do not exist, and numbers out of range.
        """
        check_embeddings(image=image, text=text)
        rows = _checked_pairs(pairs, len(image), len(text))
        counts = {"epochs": epochs, "batch_size": batch_size}
        for name, value in counts.items():
            check_count(name, value)
        check_positive("learning_rate", learning_rate)
        z = image.mean.detach(), text.mean.detach()
        with own_randomness(seed, z[0].device) as source:
            size, hidden, moves = z[0].shape[1], self.hidden, self.residual
            heads = tuple(_Head(size, hidden, residual=moves).to(z[0]) for _ in range(2))
            parameters = [p for head in heads for p in head.parameters()]
            optimizer = torch.optim.Adam(parameters, learning_rate)
            self.losses = []
            for _ in range(epochs):
                order, total = torch.randperm(len(rows), generator=source), 0.0
                for batch in order.split(batch_size):
                    i, t = rows[batch].unbind(1)
                    loss = self._loss(heads[0], z[0][i], z[1][t])
                    loss = loss + self._loss(heads[1], z[1][t], z[0][i])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += float(loss.detach()) * len(batch)
                self.losses.append(total / len(rows))
        self._heads = heads[0].eval(), heads[1].eval()
        return self

    def embed_image(self, image: Embedding) -> Embedding:
        """Return the same means, or moved ones of unit length, with variances [B, D].

        Raises
        ------
        NotFittedError
            Before ``fit``.
        InputError
            For another size.
        """
        return self._embed(0, image)

    def embed_text(self, text: Embedding) -> Embedding:
        """Embed texts, as ``embed_image`` does images.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        InputError
            For another size.
        """
        return self._embed(1, text)

    @torch.no_grad()
    @full_precision()
    def _embed(self, side: int, embedding: Embedding) -> Embedding:
        if self._heads is None:
            raise NotFittedError("this ProbVLM is not fitted: call fit(image, text, pairs) first.")
        check_embeddings(embedding=embedding)
        head = self._heads[side]
        size = head.trunk[0].in_features
        if embedding.mean.shape[1] != size:
            raise InputError(
                f"embedding has size {embedding.mean.shape[1]}, in the fit it was {size}."
            )
        mu, log_alpha, beta = head(embedding.mean)
        if self.residual:
            mu = nn.functional.normalize(mu, dim=-1)
        return Embedding(Gaussian(mu, generalised_gaussian_variance(log_alpha, beta)))

    def _loss(self, head: _Head, z: Tensor, other: Tensor) -> Tensor:
        mu, log_alpha, beta = head(z)
        loss = _nll_away_from_0(other, mu, log_alpha, beta)
        if self.residual:
            loss = loss + self.own * _nll_away_from_0(z, mu, log_alpha, beta)
        return loss


def _nll_away_from_0(x: Tensor, mu: Tensor, log_alpha: Tensor, beta: Tensor) -> Tensor:
    distance = (x - mu).abs().clamp_min(SMALL)
    return generalised_gaussian_nll(distance, torch.zeros_like(mu), log_alpha, beta).mean()


def _checked_pairs(pairs: Tensor, n: int, m: int) -> Tensor:
    rows = as_tensor("pairs", pairs)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.is_floating_point() or not len(rows):
        raise InputError(f"pairs has shape {tuple(rows.shape)}: pass whole numbers [P, 2].")
    for side, (name, count) in enumerate((("image", n), ("text", m))):
        low, high = int(rows[:, side].min()), int(rows[:, side].max())
        if not 0 <= low <= high < count:
            raise InputError(f"pairs name rows {low} to {high} of {name}, which has {count}.")
    return rows.long()
