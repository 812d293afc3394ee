"""The label of a query, and its probability: "none of the neighbours' labels" is one answer.

Among the labels c of the V voting neighbours, with l_c the score of the nearest neighbour of that
label and p_c its weight in the vote (``_votes``),

    P(c)    = exp(a l_c + g log p_c + b) / (1 + sum_c' exp(a l_c' + g log p_c' + b))
    P(none) = 1 / (1 + sum_c' ...)

a, g and b maximise the likelihood of labelled queries, whose label is none of the candidates where
they have no neighbour of it: a conditional logit (McFadden 1974) over what the search returned.

What any engine returns, as hits: arrays in, arrays out, no index.

An engine gives distances ``d_ij = |m_i - m_j|`` and labels ``l_ij`` of the k nearest items; the
query's uncertainty and epistemic number come from the embedder, or from an exported graph. With
the standard deviation of a distance nothing else enters a calibration (``PairFeatures``).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from laplace_metric._utils.display import Shown
from laplace_metric._utils.validation import as_array, as_tensor
from laplace_metric.calibration._hits import VOTES, LabelVotes, SearchHits
from laplace_metric.calibration._thresholds import Threshold, accepts
from laplace_metric.errors import DistanceScaleWarning, InputError, NonFiniteError
from laplace_metric.laplace import Distance

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


ENOUGH, APART = 10, 0.3
"""Queries whose distances tell their scale; a gap between two distributions that is none."""
MOST_FALL = 0.5
"""Share of queries whose first neighbour may be the farthest: none, but for ties and rounding."""
Array = Any
"""A tensor where distances are one, else a NumPy array."""


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """Calibrated answers for Q queries and their k neighbours.

    Parameters
    ----------
    match_probability : [Q, k]
        That query and neighbour are a match; 0 where there is no neighbour.
    p_value : [Q]
        Of "the query has a match in the collection".
    unknown : [Q]
        ``p_value <= alpha``.
    label : [Q] or None
        The answer: the likeliest label of the neighbours. None, as the next, if it was calibrated
        with matches.
    label_probability : [Q] or None
        That it is the query's.
    ambiguity : [Q] or None
        Entropy in nats of the neighbours' vote; None without labels.
    alpha : float
        Share of queries with a match that may be called unknown.
    """

    match_probability: Array
    p_value: Array
    unknown: Array
    label: np.ndarray[Any, Any] | Tensor | None = None
    label_probability: Array | None = None
    ambiguity: Array | None = None
    alpha: float = 0.05

    def accepted(self, threshold: Threshold | float) -> Array:
        """Return whether to answer each query [Q]; see ``SearchResult.accepted``.

        Raises
        ------
        InputError
            For a threshold that is no finite number.
        """
        return accepts(threshold, self.match_probability[:, 0], self.p_value, self.alpha)


@dataclass(frozen=True)
class GivenHits:
    """Checked arrays: float64 distances [Q, k], per-query numbers [Q], labels as they came."""

    distance: Float[Tensor, "Q k"]
    labels: np.ndarray[Any, Any] | None
    spread: Float[Tensor, "Q k"] | None
    uncertainty: Float[Tensor, " Q"] | None
    epistemic: Float[Tensor, " Q"]

    @classmethod
    def of(
        cls, distances: Any, labels: Any, uncertainty: Any, epistemic: Any, distance_sd: Any
    ) -> GivenHits:
        """From arrays of any kind.

        Raises
        ------
        InputError
            For other shapes, NaN, and numbers below 0 that have none.
        """
        distance = _pairs("distances", distances)
        _check_ascending(distance)
        q = len(distance)
        names = None if labels is None else _labels(labels, tuple(distance.shape))
        spread = None if distance_sd is None else _pairs("distance_sd", distance_sd)
        if spread is not None and spread.shape != distance.shape:
            raise InputError(f"distance_sd is {list(spread.shape)}: pass {list(distance.shape)}.")
        trace = None if uncertainty is None else _per_query("uncertainty", uncertainty, q)
        if trace is not None and bool((trace < 0).any()):
            raise InputError("uncertainty is below 0: pass Embedding.uncertainty.")
        return cls(distance, names, spread, trace, _per_query("epistemic", epistemic, q))

    @property
    def exists(self) -> Bool[Tensor, "Q k"]:
        """True where there is a neighbour: a finite distance."""
        return self.distance.isfinite()

    def warn_if_scaled(self, nearest: Float[Tensor, " m"]) -> None:
        """Warn where distances are unlike ``nearest`` [m], those of the calibration, but for scale.

        Squares: D(d) > 0.3 and D(sqrt d) < D(d) / 2, with D the largest gap between the shares of
        d and of ``nearest`` below any distance (Kolmogorov and Smirnov's statistic). Another scale:
        the median is ten times beyond all of them.
        """
        if len(self.distance) < ENOUGH or not bool(self.exists[:, 0].all()):
            return
        ours = self.distance.amin(1).cpu()
        middle = float(ours.median())
        gap, of_roots = _gap(ours, nearest), _gap(ours.sqrt(), nearest)
        least, most = float(nearest.min()), float(nearest.max())
        told = f"distances: the nearest items are {middle:.3g} away (median of these queries), "
        told += f"those of the queries that calibrated {least:.3g} to {most:.3g}"
        if gap > APART and of_roots < gap / 2:
            told += "; their roots fit. FAISS and others return squares: pass the roots."
        elif middle > 10 * most or middle < least / 10:
            told += ". Pass Euclidean distances of the same embeddings, in the same units."
        else:
            return
        warnings.warn(told, DistanceScaleWarning, stacklevel=3)

    def hits(self) -> SearchHits:
        """Return the hits as a calibration reads them; columns not given have no weight."""
        positions = torch.where(self.exists, 0, -1)
        one = torch.ones_like(self.distance)
        spread = torch.zeros_like(one) if self.spread is None else self.spread
        squared = Distance(one, (2 * spread.where(self.exists, 0)).square())  # sd / (2 sqrt(1))
        trace = torch.ones_like(self.epistemic) if self.uncertainty is None else self.uncertainty
        hits = positions, self.distance, squared, trace, self.epistemic
        if self.labels is None:
            return SearchHits(*hits)
        return SearchHits(*hits, LabelVotes.of(self.distance, self.codes()))

    def verdict(
        self,
        numbers: dict[str, Tensor | None],
        answer: Int[Tensor, " Q"] | None,
        distances: Any,
        labels: Any,
        alpha: float,
    ) -> Verdict:
        """Tensors where the ``distances`` were one, else arrays; labels as they came."""
        label = None
        if answer is not None and self.labels is not None:
            rows = answer[:, None].cpu().numpy()
            label = np.take_along_axis(self.labels, rows, 1)[:, 0]
        of: dict[str, Any] = {**numbers, "label": label, "alpha": alpha}
        if not isinstance(distances, Tensor):
            arrays = {k: x.cpu().numpy() for k, x in numbers.items() if x is not None}
            of.update(arrays)
        elif isinstance(labels, Tensor) and label is not None:
            of["label"] = torch.from_numpy(label).to(labels)
        return Verdict(**of)

    def codes(self) -> Int[Tensor, "Q k"]:
        """Numbers of the labels; -1 where there is no neighbour."""
        assert self.labels is not None
        codes = np.unique(self.labels, return_inverse=True)[1].reshape(self.labels.shape)
        return torch.from_numpy(codes).to(self.distance.device).masked_fill(~self.exists, -1)


def _pairs(name: str, values: Any) -> Float[Tensor, "Q k"]:
    """Not below 0; infinite where there is no neighbour."""
    pairs = as_tensor(name, values).double()
    if pairs.ndim != 2 or not pairs.shape[1]:
        raise InputError(f"{name} has shape {tuple(pairs.shape)}: pass [Q, k].")
    if bool(pairs.isnan().any()):
        raise NonFiniteError(f"{name} holds NaN: pass inf where there is no neighbour.")
    if bool((pairs < 0).any()):
        raise InputError(
            f"{name} is below 0: pass Euclidean distances; of a cosine s, sqrt(2 - 2 s)."
        )
    return pairs


def _check_ascending(distance: Float[Tensor, "Q k"]) -> None:
    """Similarities fall from neighbour to neighbour: the first is the largest, the last is less."""
    exists = distance.isfinite()
    first, largest = distance[:, 0], distance.where(exists, -torch.inf).amax(1)
    last = distance.gather(1, exists.sum(1, keepdim=True).clamp(min=1) - 1)[:, 0]
    falls = (first == largest) & (last < first)
    if len(distance) and float(falls.double().mean()) > MOST_FALL:
        raise InputError(
            "distances fall from neighbour to neighbour, as similarities do: pass Euclidean "
            "distances, nearest first; of a cosine s, sqrt(2 - 2 s)."
        )


def _gap(one: Tensor, other: Tensor) -> float:
    """``sup_x |F(x) - G(x)|`` of two samples."""
    at = torch.cat([one, other])
    shares = [
        torch.searchsorted(x.sort().values, at, right=True).double() / len(x) for x in (one, other)
    ]
    return float((shares[0] - shares[1]).abs().max())


def _per_query(name: str, values: Any, n: int) -> Float[Tensor, " Q"]:
    numbers = as_tensor(name, values).double()
    if numbers.shape != (n,):
        raise InputError(f"{name} has shape {tuple(numbers.shape)}: pass [{n}], one a query.")
    if not bool(numbers.isfinite().all()):
        raise NonFiniteError(f"{name} holds NaN or infinity: check those queries.")
    return numbers


def _labels(labels: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels
    array = as_array("labels", values)
    if array.dtype == object:
        array = array.astype(str)
    if array.shape != shape or array.dtype.kind not in "iuU":
        raise InputError(
            f"labels are {array.dtype} of shape {array.shape}: pass whole numbers or strings "
            f"{list(shape)}, those of the neighbours; anything where there is none."
        )
    return array
