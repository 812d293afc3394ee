"""Pairs that match under a posterior, for pytorch-metric-learning.

``MatchFinder`` of that library calls two embeddings a match if their distance passes a threshold.
Here every draw of a posterior is asked: each draw is one set of weights, which both embeddings of a
pair share, and the share of draws that call the pair a match is compared with a probability.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.utils.inference import MatchFinder
from torch import Tensor

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count, check_real, check_share
from laplace_metric.errors import InputError
from laplace_metric.inputs import ModelInput
from laplace_metric.probabilistic_embedder import ProbabilisticEmbedder

__all__ = ["LaplaceMatchFinder"]


class LaplaceMatchFinder(MatchFinder):  # type: ignore[misc]
    """A ``MatchFinder`` that asks every draw of a posterior whether a pair matches.

    It takes inputs of the embedder, not embeddings. Pass it to ``InferenceModel`` with a trunk that
    leaves inputs alone: ``InferenceModel(torch.nn.Identity(), match_finder=finder,
    normalize_embeddings=False, data_device="cpu")``.

    The share of draws says what the posterior knows, and is no calibrated probability: for a
    guaranteed rate use a rule of an index or of scores.

    Parameters
    ----------
    embedder : ProbabilisticEmbedder
        Fitted embedder, such as a ``LaplaceEmbedder``; any method with ``draw``.
    distance : BaseDistance
        Distance of pytorch-metric-learning, such as ``CosineSimilarity()``.
    threshold : float or None
        Largest distance of a match, or smallest similarity if the distance is one. None, the
        default: each call passes its own.
    probability : float in (0, 1)
        Smallest share of the draws that call a pair a match. Default: 0.5; more is more careful.
    n_samples : int
        Number of draws. Default: 100.
    seed : torch.Generator, int or None
        Generator or seed of the draws. A seed, 0 by default, uses the same weights in every call.
        None: torch's global generator.

    Raises
    ------
    InputError
        If an argument is of another kind or out of range.

    Examples
    --------
    >>> from pytorch_metric_learning.distances import CosineSimilarity
    >>> from laplace_metric import LaplaceEmbedder
    >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4
    >>> embedder = LaplaceEmbedder.from_embeddings(x, y, distance="arccos")
    >>> finder = LaplaceMatchFinder(embedder, CosineSimilarity(), 0.7, n_samples=20)
    >>> finder.get_matching_pairs(x[:2], x[:4])
    array([[ True, False, False, False],
           [False,  True, False, False]])
    >>> finder.is_match(x[:1], x[4:5])
    True
    """

    def __init__(
        self,
        embedder: ProbabilisticEmbedder,
        distance: BaseDistance,
        threshold: float | None = None,
        *,
        probability: float = 0.5,
        n_samples: int = 100,
        seed: Seed = 0,
    ) -> None:
        if not isinstance(embedder, ProbabilisticEmbedder):
            raise InputError(
                f"embedder is a {type(embedder).__name__}: pass a fitted LaplaceEmbedder, or "
                "another embedder with draws. MatchFinder takes embeddings without a posterior."
            )
        if not isinstance(distance, BaseDistance):
            raise InputError(
                f"distance is a {type(distance).__name__}: pass a distance of "
                "pytorch-metric-learning, such as CosineSimilarity()."
            )
        if threshold is not None:
            threshold = check_real("threshold", threshold)
        super().__init__(distance, threshold)
        self.embedder = embedder
        self.probability = check_share("probability", probability)
        self.n_samples = check_count("n_samples", n_samples)
        as_generator(seed)
        self.seed = seed

    def match_shares(
        self, query: ModelInput, ref: ModelInput | None = None, threshold: float | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the share of draws that call each pair a match, [Q, R] in [0, 1].

        Parameters
        ----------
        query : one batch of Q inputs
            Inputs as the embedder takes them.
        ref : one batch of R inputs, or None
            Inputs to compare with. None, the default: ``query`` itself.
        threshold : float or None
            Threshold of this call. None, the default: that of the finder.

        Raises
        ------
        InputError
            If neither the call nor the finder has a threshold.
        """
        allowed = self._threshold(threshold)
        queries, others = self._drawn(query, query if ref is None else ref)
        shares: Tensor = sum(
            self._passes(self.distance(a, b), allowed).double()
            for a, b in zip(queries, others, strict=True)
        )  # type: ignore[assignment]
        return (shares / self.n_samples).cpu().numpy()

    def get_matching_pairs(
        self,
        query_emb: ModelInput,
        ref_emb: ModelInput | None = None,
        threshold: float | None = None,
        return_tuples: bool = False,
    ) -> Any:
        """Return which pairs match: a mask [Q, R], or their places as tuples (query, ref).

        Parameters
        ----------
        query_emb, ref_emb : one batch of inputs each
            Inputs of the embedder, under the names of ``MatchFinder``. ``ref_emb=None``, the
            default: ``query_emb`` itself.
        threshold : float or None
            Threshold of this call. None, the default: that of the finder.
        return_tuples : bool
            True returns a list of places. Default: False.

        Raises
        ------
        InputError
            If neither the call nor the finder has a threshold.
        """
        matches = self.match_shares(query_emb, ref_emb, threshold) >= self.probability
        return list(zip(*np.where(matches), strict=True)) if return_tuples else matches

    def is_match(self, x: ModelInput, y: ModelInput, threshold: float | None = None) -> Any:
        """Return whether row i of x and row i of y match: [B], or a bool for a single pair.

        Parameters
        ----------
        x, y : one batch of B inputs each
            Inputs of the embedder; row i of each is one pair.
        threshold : float or None
            Threshold of this call. None, the default: that of the finder.

        Raises
        ------
        InputError
            If neither the call nor the finder has a threshold, or the batches differ in length.
        """
        allowed = self._threshold(threshold)
        first, second = self._drawn(x, y)
        if first.shape != second.shape:
            raise InputError(
                f"x has {first.shape[1]} inputs and y has {second.shape[1]}: pass as many of each."
            )
        votes = [
            self._passes(self.distance.pairwise_distance(a, b), allowed)
            for a, b in zip(first, second, strict=True)
        ]
        matches = torch.stack(votes).double().mean(0) >= self.probability
        return bool(matches) if matches.numel() == 1 else matches.cpu().numpy()

    @torch.no_grad()
    def _drawn(self, first: ModelInput, second: ModelInput) -> tuple[Tensor, Tensor]:
        """Return both batches [n, B, Z] under the same draws of the weights."""
        embed = self.embedder.draw(self.n_samples, as_generator(self.seed))
        a = embed(first)
        return a, a if second is first else embed(second)

    def _passes(self, distance: Tensor, threshold: float) -> Tensor:
        return distance >= threshold if self.distance.is_inverted else distance <= threshold

    def _threshold(self, threshold: float | None) -> float:
        if threshold is None:
            threshold = self.threshold
        if threshold is None:
            raise InputError("threshold is None: pass one here, or to LaplaceMatchFinder.")
        return check_real("threshold", threshold)
