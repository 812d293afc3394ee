"""``Calibration.apply`` as one module of tensors, without checks: what a graph is traced from."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.laplace import Distance
from laplace_metric.search.match._answer import Candidates, LabelPosterior
from laplace_metric.search.match._hits import (
    PairFeatures,
    SearchHits,
    query_statistics,
    without_rounding,
)
from laplace_metric.search.match._probability import MatchProbability
from laplace_metric.search.match._votes import VOTES, LabelVotes
from laplace_metric.search.match.graph._tables import KnotTable, RankTable

INPUTS = ("distances", "labels", "epistemic", "uncertainty")
OUTPUTS = ("match_probability", "p_value", "unknown", "label", "label_probability", "ambiguity")
OF_PAIRS = 3
"""Outputs that need no labels."""
NOBODY = -(2**63)
"""The label of no neighbour, which no label has."""


class VerdictModule(nn.Module):
    """distances, labels [B, K], epistemic, uncertainty [B] -> the numbers of a ``Verdict``.

    It computes in float64 and answers in the type of the distances. It refuses nothing but fewer
    neighbours than vote. Numbers are buffers, for ONNX rounds those of Python to float32.

    Parameters
    ----------
    matcher : MatchProbability
    labeller : LabelPosterior or None
    statistics : Tensor [m, 3]
        Of known held-out queries.
    least : int
        How many neighbours are passed at the least, at most 20: those that vote.
    alpha : float
        Share of queries with a match that may be called unknown.
    labelled : bool
        Whether labels are among the inputs.
    """

    last: Tensor
    offset: Tensor
    alpha: Tensor

    def __init__(
        self,
        matcher: MatchProbability,
        labeller: LabelPosterior | None,
        statistics: Float[Tensor, "m 3"],
        *,
        least: int,
        alpha: float,
        labelled: bool,
    ) -> None:
        super().__init__()
        self.matcher = replace(matcher, score=replace(matcher.score, offset=0.0))
        self.labeller, self.least = labeller, least
        isotonic = matcher.calibrator.kind == "isotonic"
        self.knots = KnotTable(matcher.calibrator.numbers) if isotonic else None
        self.ranks = RankTable(without_rounding(statistics.double()))
        self.inputs = INPUTS if labelled else tuple(name for name in INPUTS if name != "labels")
        self.outputs = OUTPUTS if labeller is not None else OUTPUTS[:OF_PAIRS]
        self.register_buffer("last", torch.tensor([least - 1]))
        self.register_buffer("offset", torch.tensor(matcher.score.offset, dtype=torch.float64))
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """``outputs``, of tensors in the order of ``inputs``."""
        given = dict(zip(self.inputs, tensors, strict=True))
        labels, distances = given.pop("labels", None), given.pop("distances")
        epistemic, uncertainty = (given[name].double() for name in INPUTS[2:])
        hits = self._hits(distances.double(), labels, uncertainty, epistemic)
        logit = self.matcher.logit(PairFeatures.of(hits)) + self.offset
        probability = self._probability(logit)[:, : distances.shape[1]]
        p_value = self.ranks(query_statistics(hits))
        known = probability.to(distances), p_value.to(distances), p_value <= self.alpha
        if self.labeller is None or labels is None or hits.votes is None:
            return known
        best = self.labeller(Candidates.of(logit, hits.votes)).max(1)
        answer = labels.gather(1, best.indices[:, None])[:, 0]
        return *known, answer, best.values.to(distances), hits.votes.ambiguity.to(distances)

    def _hits(
        self, distance: Tensor, labels: Tensor | None, uncertainty: Tensor, epistemic: Tensor
    ) -> SearchHits:
        """With 21 neighbours or more, so that 20 are never all; the additional ones are nobody."""
        last = distance.index_select(1, self.last)  # in a graph, it refuses fewer columns
        nobody = torch.full_like(last, torch.inf).expand(-1, VOTES + 1 - self.least)
        distance = torch.cat([distance.masked_fill(last < 0, torch.inf), nobody], 1)
        exists, votes = distance.isfinite(), None
        if labels is not None:
            codes = torch.cat([labels, torch.zeros_like(nobody, dtype=torch.long)], 1)
            votes = LabelVotes.in_one_block(distance, codes.masked_fill(~exists, NOBODY))
        certain = Distance(torch.ones_like(distance), torch.zeros_like(distance))
        positions = torch.where(exists, 0, -1)
        return SearchHits(positions, distance, certain, uncertainty, epistemic, votes)

    def _probability(self, logit: Tensor) -> Tensor:
        if self.knots is None:
            return self.matcher(logit)
        return self.knots(logit).masked_fill(logit == -torch.inf, 0.0)
