"""The label of a query, and its probability: "none of the neighbours' labels" is one answer.

Among the labels c of the V voting neighbours, with l_c the score of the nearest neighbour of that
label and p_c its weight in the vote (``_votes``),

    P(c)    = exp(a l_c + g log p_c + b) / (1 + sum_c' exp(a l_c' + g log p_c' + b))
    P(none) = 1 / (1 + sum_c' ...)

a, g and b maximise the likelihood of labelled queries, whose label is none of the candidates where
they have no neighbour of it: a conditional logit (McFadden 1974) over what the search returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric.search.match._votes import VOTES, LabelVotes

START = (0.5, 0.5, 0.0)
"""(a, g, b) that a faint penalty draws to, so that separable queries have a solution."""
PENALTY = 1e-2
STEPS = 100


@dataclass(frozen=True)
class Candidates:
    """The labels among which an answer is chosen, each at its nearest neighbour.

    Parameters
    ----------
    terms : Tensor [Q, V, 2], float64
        l_c and log p_c.
    first : Tensor [Q, V]
        Whether a neighbour is the nearest one of its label.
    """

    terms: Float[Tensor, "Q V 2"]
    first: Bool[Tensor, "Q V"]

    @classmethod
    def of(
        cls,
        logit: Float[Tensor, "Q K"],
        votes: LabelVotes,
    ) -> Candidates:
        """From scores, -inf where there is no neighbour."""
        logit, weighted, labels = (x[:, :VOTES] for x in (logit, votes.weighted, votes.labels))
        same = labels[:, :, None] == labels[:, None]
        rank = torch.arange(same.shape[1], device=same.device)
        first = (same.to(torch.uint8).argmax(2) == rank) & (logit > -torch.inf)
        log_p = torch.where(weighted > 0, weighted, 1.0).log()
        terms = torch.stack([logit, log_p], 2).double()
        return cls(torch.where(first[..., None], terms, 0.0), first)


@dataclass(frozen=True)
class LabelPosterior:
    """P(c) of the candidates.

    Parameters
    ----------
    numbers : Tensor [3], float64
        a, g and b.
    """

    numbers: Float[Tensor, " 3"]

    def __call__(self, candidates: Candidates) -> Float[Tensor, "Q V"]:
        """P [Q, V] of each neighbour's label where it is the nearest of its label, else 0."""
        return _log_posterior(self.numbers.to(candidates.terms.device), candidates)[:, :-1].exp()

    def answer(self, candidates: Candidates) -> tuple[Int[Tensor, " Q"], Float[Tensor, " Q"]]:
        """The neighbour with the likeliest label [Q], and the probability of that label [Q]."""
        best = self(candidates).max(1)
        return best.indices, best.values

    @classmethod
    def fit(cls, candidates: Candidates, match: Bool[Tensor, "Q V"]) -> LabelPosterior:
        """``match``: whether the neighbours' labels are the query's."""
        correct = match[:, : candidates.first.shape[1]] & candidates.first
        none = torch.full_like(correct[:, 0], correct.shape[1], dtype=torch.long)
        target = torch.where(correct.any(1), correct.to(torch.uint8).argmax(1), none)
        start = candidates.terms.new_tensor(START)
        with torch.enable_grad():
            numbers = start.clone().requires_grad_()
            solver = torch.optim.LBFGS([numbers], max_iter=STEPS, line_search_fn="strong_wolfe")

            def loss() -> Tensor:
                solver.zero_grad()
                log_p = _log_posterior(numbers, candidates).gather(1, target[:, None])
                value = PENALTY * (numbers - start).square().sum() - log_p.sum()
                value.backward()
                return value

            solver.step(loss)
        return cls(numbers.detach())


def _log_posterior(numbers: Tensor, candidates: Candidates) -> Tensor:
    """log P [Q, V + 1], the last of "none"; -inf for what is no candidate."""
    score = candidates.terms @ numbers[:2] + numbers[2]
    score = score.masked_fill(~candidates.first, -torch.inf)
    return torch.log_softmax(torch.cat([score, torch.zeros_like(score[:, :1])], 1), 1)
