"""The verdict of a calibration as a graph: held-out tables are compared, not searched.

With knots (x_1, y_1), ..., (x_n, y_n), x ascending, a score l lies behind knot

    j(l) = #{i : x_i <= l'},    l' = max(l, x_1)
    p(l) = y_j + b_j (l' - x_j),    b_j = (y_{j+1} - y_j) / (x_{j+1} - x_j),  b_n = 0

and the rank of a statistic t among m held-out ones is ``#{i : s_i >= t}``. ONNX has no binary
search: the counts compare with all, B k n and B m numbers at once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.calibration._apply import Candidates, LabelPosterior
from laplace_metric.calibration._hits import (
    VOTES,
    LabelVotes,
    PairFeatures,
    SearchHits,
    query_statistics,
    without_rounding,
)
from laplace_metric.calibration._probability import MatchProbability
from laplace_metric.errors import ExportError
from laplace_metric.export._write import OPSET, check_format, stated, write_program
from laplace_metric.laplace import Distance


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


# ``Calibration.apply`` as one module of tensors, without checks: what a graph is traced from.


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


# A calibration in a file: distances, labels, epistemic, uncertainty -> match probabilities.


SIZES = ("batch", "neighbours")


@dataclass(frozen=True)
class VerdictGraph:
    """A file with the verdict of a calibration.

    Parameters
    ----------
    path : Path
    format : "onnx" | "torch"
    inputs : tuple of names
        "distances" [batch, neighbours] Euclidean, infinite where there is none; "labels"
        [batch, neighbours] int64 (not where the collection has none); "epistemic" and
        "uncertainty" [batch].
    outputs : tuple of names
        The fields of ``Verdict``: "match_probability" [batch, neighbours], "p_value" and "unknown"
        [batch]; where labels calibrated it "label" (int64), "label_probability" and "ambiguity"
        [batch].
    neighbours : int
        The fewest that a query needs: as many vote.
    alpha : float
        "unknown" is ``p_value <= alpha``.
    names : tuple of text or None
        The number of a name is its place here; a name that is not here, any number from
        ``len(names)`` on. None where labels are numbers, which stand for themselves.
    looks_at : tuple of names
        What a match probability depends on.
    opset : int or None
        Of ONNX.
    cross_fitted : bool
        As of ``Calibration``.
    """

    path: Path
    format: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    neighbours: int
    alpha: float
    names: tuple[str, ...] | None
    looks_at: tuple[str, ...]
    opset: int | None
    cross_fitted: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata stored in the file."""
        return stated(self)


def write_verdict(
    module: VerdictModule,
    path: Path,
    format: str,
    dtype: torch.dtype,
    *,
    names: tuple[str, ...] | None,
    looks_at: tuple[str, ...],
    cross_fitted: bool,
) -> VerdictGraph:
    """Trace and write ``path``; see ``Calibration.export``."""
    check_format(format)
    if "spread" in looks_at:
        raise ExportError(
            "this match probability looks at distance_sd, which no other engine knows: calibrate "
            "with index.calibrate(..., portable=True)."
        )
    opset = OPSET if format == "onnx" else None
    facts = module.least, float(module.alpha), names, looks_at, opset, cross_fitted
    graph = VerdictGraph(path, format, module.inputs, module.outputs, *facts)
    write_program(_traced(module, dtype), path, format, graph.metadata, SIZES)
    return graph


def _traced(module: VerdictModule, dtype: torch.dtype) -> torch.export.ExportedProgram:
    """Any batch, and any number of neighbours from those on that vote."""
    least = module.least
    batch, neighbours = torch.export.Dim(SIZES[0]), torch.export.Dim(SIZES[1], min=least)
    pairs = torch.ones(2, least + 3, dtype=dtype)
    kinds = {"distances": pairs, "labels": pairs.long()}
    given = [kinds.get(name, pairs[:, 0].clone()) for name in module.inputs]
    shapes = tuple({0: batch, 1: neighbours} if x.ndim == 2 else {0: batch} for x in given)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            module.eval(), tuple(given), dynamic_shapes={"tensors": shapes}, strict=False
        )
