"""The probability of each label of a query, and that it is none of them.

"None of the neighbours' labels" is one answer. Among the labels c of the V voting neighbours, with
l_c the score of the nearest neighbour of that label, p_c its weight in the vote (``_hits``) and o_c
its log odds by the class model of the gallery (0 without one),

    P(c)    = exp(s_c) / (1 + sum_c' exp(s_c')),    s_c = a l_c + g log p_c + h o_c + b
    P(none) = 1 / (1 + sum_c' exp(s_c'))

close to a logarithmic opinion pool (Genest & Zidek 1986), which has log probabilities where o_c has
log odds. a, g, h and b maximise the likelihood of labelled queries, whose label is none of the
candidates where they have no neighbour of it: a conditional logit (McFadden 1974) over what the
search returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from laplace_metric.calibration._array_namespace import namespace
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes

Numbers = npt.NDArray[np.float64]
START = np.array([0.5, 0.5, 0.0, 0.0])
"""(a, g, h, b) that a faint penalty draws to, so that separable queries have a solution."""
PENALTY = 1e-2
STEPS, HALVINGS, GAIN = 100, 40, 1e-13
"""Newton steps and halvings of one at most, and the relative gain that ends them."""


@dataclass(frozen=True)
class Candidates:
    """The labels among which an answer is chosen, each at its nearest neighbour.

    Parameters
    ----------
    logit, log_weight, class_odds : [Q, V]
        Evidence l_c, log p_c and o_c of each label; 0 where a neighbour is not the nearest one of
        its label.
    first : [Q, V]
        True where a neighbour is the nearest one of its label.
    """

    logit: Float[np.ndarray, "Q V"]
    log_weight: Float[np.ndarray, "Q V"]
    class_odds: Float[np.ndarray, "Q V"]
    first: Bool[np.ndarray, "Q V"]

    @classmethod
    def of(cls, logit: Any, votes: LabelVotes) -> Candidates:
        """Return the candidates of scores [Q, K], which are -inf where there is no neighbour."""
        xp = namespace(logit)
        logit, weighted, labels = (x[:, :VOTES] for x in (logit, votes.weighted, votes.labels))
        same = (labels[:, :, None] == labels[:, None]) * 1
        first = (same.argmax(2) == xp.arange(same.shape[1])) & (logit != -xp.inf)
        log_weight = xp.log(xp.where(weighted > 0, weighted, 1.0))
        odds = xp.zeros_like(logit) if votes.class_odds is None else votes.class_odds[:, :VOTES]
        logit, log_weight, odds = (xp.where(first, x, 0.0) for x in (logit, log_weight, odds))
        return cls(logit, log_weight, odds, first)


@dataclass(frozen=True)
class LabelPosterior:
    """P(c) of the candidates.

    Parameters
    ----------
    numbers : [4]
        Coefficients a, g, h and b.
    """

    numbers: Float[np.ndarray, " 4"]

    def __call__(self, candidates: Candidates) -> Any:
        """Return P [Q, V] of each neighbour's label if it is the nearest of its label, else 0."""
        score, total = self._scores(candidates)
        return namespace(score).exp(score - total[:, None])

    def _scores(self, candidates: Candidates) -> tuple[Any, Any]:
        """Return scores [Q, V], with 0 for "none", and the log of the sum of all odds [Q]."""
        xp, (a, g, h, b) = namespace(candidates.logit), self.numbers
        score = a * candidates.logit + g * candidates.log_weight + h * candidates.class_odds + b
        score = xp.where(candidates.first, score, -xp.inf)
        top = xp.amax(score, 1).clip(min=0)
        odds = xp.exp(-top) + xp.exp(score - top[:, None]).sum(1)
        return score, top + xp.log(odds)

    def answer(self, candidates: Candidates) -> tuple[Any, Any]:
        """Return the neighbour with the likeliest label [Q], and that label's probability [Q]."""
        probability = self(candidates)
        return probability.argmax(1), namespace(probability).amax(probability, 1)

    @classmethod
    def fit(cls, candidates: Candidates, match: Bool[np.ndarray, "Q K"]) -> LabelPosterior:
        """Fit the four coefficients to matches: True where a neighbour has the query's label.

        The penalised likelihood is strictly concave: Newton's method, with halved steps, finds its
        one maximum. Each step costs O(n) for n candidates of all queries.
        """
        first = candidates.first
        query = first.nonzero()[0]
        columns = (candidates.logit, candidates.log_weight, candidates.class_odds)
        terms = np.column_stack([*(x[first] for x in columns), np.ones(len(query))])
        right = match[:, : first.shape[1]][first]
        choice = _Choice(terms, right, np.flatnonzero(np.diff(query, prepend=-1)))
        at, (value, slope, curvature) = START, choice(START)
        for _ in range(STEPS):
            step = np.linalg.solve(curvature, slope)
            if slope @ step <= GAIN * (1 + abs(value)):
                break
            for _ in range(HALVINGS):
                after = choice(at - step)
                if after[0] < value:
                    break
                step /= 2
            else:
                break
            at, (value, slope, curvature) = at - step, after
        return cls(at)


@dataclass(frozen=True)
class _Choice:
    """Negative penalised log likelihood of a choice among candidates, or none of them.

    Parameters
    ----------
    terms : [n, 4]
        Terms of each candidate's score, those of one query side by side.
    right : [n]
        True for a candidate that is the query's label.
    starts : [q]
        Number of the first candidate of each query.
    """

    terms: Float[np.ndarray, "n 4"]
    right: Bool[np.ndarray, " n"]
    starts: npt.NDArray[np.intp]

    def __call__(self, numbers: Numbers) -> tuple[float, Numbers, Numbers]:
        """Return the value, its slope [4] and its curvature [4, 4]."""
        terms, starts, gap = self.terms, self.starts, numbers - START
        sizes = np.diff(starts, append=len(terms))
        score = terms @ numbers
        top = np.maximum.reduceat(score, starts).clip(min=0)
        odds = np.exp(score - top.repeat(sizes))
        whole = np.exp(-top) + np.add.reduceat(odds, starts)
        share = odds / whole.repeat(sizes)
        value = (top + np.log(whole)).sum() - score[self.right].sum() + PENALTY * gap @ gap
        slope = terms.T @ (share - self.right) + 2 * PENALTY * gap
        means = np.add.reduceat(share[:, None] * terms, starts)
        curvature = (terms.T * share) @ terms - means.T @ means + 2 * PENALTY * np.eye(len(gap))
        return float(value), slope, curvature
