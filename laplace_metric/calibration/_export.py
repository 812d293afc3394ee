"""A calibration as a graph: held-out tables are compared, not searched.

With knots (x_1, y_1), ..., (x_n, y_n), x ascending, a score l lies behind knot

    j(l) = #{i : x_i <= l'},    l' = max(l, x_1)
    p(l) = y_j + b_j (l' - x_j),    b_j = (y_{j+1} - y_j) / (x_{j+1} - x_j),  b_n = 0

and the rank of a statistic t among m held-out ones is ``#{i : s_i >= t}``. ONNX has no binary
search: the counts compare with all, B k n and B m numbers at once. All else are the formulas of
this room, of tensors. The one file here that needs torch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.calibration._hits import (
    VOTES,
    LabelVotes,
    SearchHits,
    label_evidence,
    pair_features,
    query_statistics,
)
from laplace_metric.calibration._labels import (
    Candidates,
    LabelPosterior,
    count_as_strange,
    ranks_among_others,
)
from laplace_metric.calibration._padding import is_padding
from laplace_metric.calibration._probability import (
    ROUNDING,
    Calibrator,
    MatchProbability,
    Score,
)
from laplace_metric.calibration._score_model import ScoreModel
from laplace_metric.errors import ExportError, InputError
from laplace_metric.export._file_formats import OPSET, check_format, stated, write_program

INPUTS = ("distances", "labels", "epistemic")
OUTPUTS = ("match_probability", "p_value", "unknown", "label", "label_probability", "ambiguity")
OF_PAIRS = 3
"""Outputs that need no labels."""
NOBODY = -(2**63)
"""The label of no neighbour, which no label has."""


class KnotTable(nn.Module):
    """Scores -> probabilities, linear between knots and flat beyond: ``numpy.interp``.

    Parameters
    ----------
    numbers : [2, n]
        x and y of ``Calibrator`` "isotonic".

    Examples
    --------
    >>> table = KnotTable(np.array([[0.0, 1.0, 3.0], [0.2, 0.4, 0.8]]))
    >>> table(torch.tensor([-5.0, 0.5, 2.0, 9.0]))
    tensor([0.2000, 0.3000, 0.6000, 0.8000], dtype=torch.float64)
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    def __init__(self, numbers: Float[np.ndarray, "2 n"]) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor(numbers[0]))
        self.register_buffer("y", torch.tensor(numbers[1]))
        width = self.x.diff()
        slope = torch.where(width > 0, self.y.diff() / width, 0.0)
        self.register_buffer("slope", torch.cat([slope, self.x.new_zeros(1)]))

    def forward(self, logit: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """p of the scores' shape."""
        raised = logit.maximum(self.x[0])
        j = (self.x <= raised[..., None]).sum(-1) - 1
        return self.y[j] + self.slope[j] * (raised - self.x[j])


class _OfConstants(nn.Module):
    """Numbers are buffers, for ONNX rounds those of Python to float32."""

    def _constant(self, name: str, numbers: Any) -> Any:
        self.register_buffer(f"_{name}", torch.tensor(numbers, dtype=torch.float64))
        return getattr(self, f"_{name}")

    def _calibrator_of(self, calibrator: Calibrator) -> Any:
        self.knots = KnotTable(calibrator.numbers) if calibrator.kind == "isotonic" else None
        beta = replace(calibrator, numbers=self._constant("beta", calibrator.numbers))
        return self.knots or beta


class CalibrationModule(_OfConstants):
    """distances, labels [B, K], epistemic [B] -> the numbers of ``CalibratedHits``.

    It computes in float64 and answers in the type of the distances. It refuses nothing but fewer
    neighbours than vote.

    Parameters
    ----------
    matcher : MatchProbability
    labeller : LabelPosterior or None
    statistics : [m, 3]
        Of known held-out queries.
    least : int
        How many neighbours are passed at the least, at most 20: those that vote.
    alpha : float
        Share of queries with a match that may be called unknown.
    labelled : bool
        Whether labels are among the inputs.
    """

    last: Tensor
    alpha: Tensor
    columns: Tensor
    others: Tensor

    def __init__(
        self,
        matcher: MatchProbability,
        labeller: LabelPosterior | None,
        statistics: Float[np.ndarray, "m 3"],
        *,
        least: int,
        alpha: float,
        labelled: bool,
    ) -> None:
        super().__init__()
        self.least, self.n = least, len(statistics)
        self.inputs = INPUTS if labelled else tuple(name for name in INPUTS if name != "labels")
        self.outputs = OUTPUTS if labeller is not None else OUTPUTS[:OF_PAIRS]
        self.register_buffer("last", torch.tensor([least - 1]))
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))
        self.register_buffer("columns", torch.tensor(statistics.T))
        self.register_buffer("others", torch.tensor(ranks_among_others(statistics)))
        score = matcher.score
        tensors = Score(
            self._constant("weights", score.weights),
            self._constant("low", score.low),
            self._constant("cap", score.cap),
            self._constant("offset", score.offset),
        )
        calibrator = self._calibrator_of(matcher.calibrator)
        self.matcher = replace(matcher, score=tensors, calibrator=calibrator)
        self.labeller = labeller
        if labeller is not None:
            self.labeller = LabelPosterior(self._constant("labels", labeller.numbers))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """``outputs``, of tensors in the order of ``inputs``."""
        given = dict(zip(self.inputs, tensors, strict=True))
        labels, distances = given.pop("labels", None), given.pop("distances")
        hits = self._hits(distances.double(), labels, given["epistemic"].double())
        values, exists = pair_features(hits)
        logit = torch.where(exists, self.matcher.score(values), -torch.inf)
        probability = self.matcher(logit)[:, : distances.shape[1]]
        strange = count_as_strange(self.columns, self.others, query_statistics(hits))
        p_value = (1 + strange).double() / (self.n + 1)
        known = probability.to(distances), p_value.to(distances), p_value <= self.alpha
        if self.labeller is None or labels is None or hits.votes is None:
            return known
        best, label_probability = self.labeller.answer(Candidates.of(logit, hits.votes))
        answer = labels.gather(1, best[:, None])[:, 0]
        ambiguity: Any = hits.votes.ambiguity
        return *known, answer, label_probability.to(distances), ambiguity.to(distances)

    def _hits(self, distance: Tensor, labels: Tensor | None, epistemic: Tensor) -> SearchHits:
        """With 21 neighbours or more, so that 20 are never all; the others do not exist."""
        last = distance.index_select(1, self.last)  # in a graph, it refuses fewer columns
        nobody = torch.full_like(last, torch.inf).expand(-1, VOTES + 1 - self.least)
        distance = distance.masked_fill(is_padding(distance), torch.inf)
        distance = torch.cat([distance.masked_fill(last < 0, torch.inf), nobody], 1)
        exists, votes = ~distance.isinf(), None
        if labels is not None:
            codes = torch.cat([labels, torch.zeros_like(nobody, dtype=torch.long)], 1)
            codes = codes.masked_fill(~exists, NOBODY)
            votes = _of_tensors(LabelVotes, codes, *label_evidence(distance, codes))
        positions, certain = torch.where(exists, 0, -1), torch.ones_like(distance)
        hits: SearchHits = _of_tensors(
            SearchHits, positions, distance, certain, None, epistemic, votes
        )
        return hits


def _of_tensors(kind: Any, *tensors: Any) -> Any:
    """A value of the formulas' types, of tensors in place of arrays."""
    return kind(*tensors)


# A calibration in a file: distances, labels, epistemic -> match probabilities.


SIZES = ("batch", "neighbours")


@dataclass(frozen=True)
class CalibrationGraph:
    """A file with a calibration.

    Parameters
    ----------
    path : Path
    format : "onnx" | "torch"
    inputs : tuple of names
        "distances" [batch, neighbours] Euclidean, infinite where there is none; "labels"
        [batch, neighbours] int64 (not where the collection has none); "epistemic" [batch].
    outputs : tuple of names
        Fields of ``CalibratedHits``: "match_probability" [batch, neighbours], "p_value" and
        "unknown" [batch]; where labels calibrated it "label" (int64), "label_probability" and
        "ambiguity" [batch].
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


def write_calibration_graph(
    module: CalibrationModule,
    path: Path,
    format: str,
    dtype: torch.dtype | None,
    *,
    names: tuple[str, ...] | None,
    looks_at: tuple[str, ...],
    cross_fitted: bool,
) -> CalibrationGraph:
    """Trace and write ``path``; see ``Calibration.export``."""
    dtype = _checked(format, dtype)
    graph = CalibrationGraph(
        path,
        format,
        module.inputs,
        module.outputs,
        module.least,
        float(module.alpha),
        names,
        looks_at,
        OPSET if format == "onnx" else None,
        cross_fitted,
    )
    write_program(_traced(module, dtype), path, format, graph.metadata, SIZES)
    return graph


def _checked(format: str, dtype: torch.dtype | None) -> torch.dtype:
    check_format(format)
    dtype = torch.float32 if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: pass torch.float32 or torch.float64.")
    return dtype


def _traced(module: CalibrationModule, dtype: torch.dtype) -> torch.export.ExportedProgram:
    """Any batch, and any number of neighbours from those on that vote."""
    least = module.least
    batch, neighbours = torch.export.Dim(SIZES[0]), torch.export.Dim(SIZES[1], min=least)
    pairs = torch.ones(2, least + 3, dtype=dtype)
    kinds = {"distances": pairs, "labels": pairs.long()}
    given = [kinds.get(name, pairs[:, 0].clone()) for name in module.inputs]
    shapes = tuple({0: batch, 1: neighbours} if x.ndim == 2 else {0: batch} for x in given)
    return _program(module, given, shapes)


def _program(module: nn.Module, given: list[Tensor], shapes: Any) -> torch.export.ExportedProgram:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            module.eval(), tuple(given), dynamic_shapes={"tensors": shapes}, strict=False
        )


# A rule of scores in a file: scores, evidence -> probabilities, answered.


class RuleModule(_OfConstants):
    """scores [B, k] or [B, k, S], evidence [B, k] each -> probability [B, k], answered [B].

    It computes in float64 and answers in the type of the scores. It checks nothing.
    """

    _sign: Tensor
    _rank: Tensor
    _weights: Tensor
    _offset: Tensor
    _value: Tensor
    _later: Tensor

    def __init__(self, model: ScoreModel, kinds: tuple[str, ...], k: int, value: float) -> None:
        super().__init__()
        self._constant("sign", [-1.0 if kind == "distance" else 1.0 for kind in kinds])
        self._constant("rank", np.log(np.arange(1.0, k + 1)))
        self._constant("weights", model.weights)
        self._constant("offset", model.offset)
        self._constant("value", value)
        self.register_buffer("_later", torch.ones(k, k).triu(1)[..., None] > 0)
        self.calibrator = self._calibrator_of(model.calibrator)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Of tensors in the order of ``RuleGraph.inputs``; ``score_features`` in NumPy."""
        scores, *evidence = tensors
        v: Tensor = scores.double().reshape(*scores.shape[:2], -1) * self._sign
        exists = ~is_padding(v).any(2, keepdim=True)  # NaN exists, and gives NaN
        listed = torch.where(exists, v, -torch.inf)
        v, n = torch.where(exists, v, 0.0), exists.sum(1, keepdim=True)
        mean = v.sum(1, keepdim=True) / n
        apart = torch.where(exists, v - mean, 0.0)
        sd = ((apart**2).sum(1, keepdim=True) / n).sqrt()
        z = torch.where(sd > ROUNDING * mean.abs(), apart / sd, 0.0)
        own, other = listed[:, :, None], listed[:, None]
        behind = (other < own) | ((other == own) & self._later)
        following = torch.where(behind, other, -torch.inf).amax(2)
        gap = torch.where(following.isfinite(), listed - following, 0.0)
        lists = torch.stack([v, listed.amax(1, keepdim=True) - v, gap, z], -1).flatten(2)
        columns = [self._rank.expand(exists.shape[:2]), *(column.double() for column in evidence)]
        features = torch.cat([lists, torch.stack(columns, -1)], -1)
        logit = torch.where(exists, features, 0.0) @ self._weights + self._offset
        p = torch.where(exists[..., 0], self.calibrator(logit), 0.0)
        return p.to(scores), exists[:, 0, 0] & (p[:, 0] >= self._value)


@dataclass(frozen=True)
class RuleGraph:
    """A file with a rule of scores.

    Parameters
    ----------
    path : Path
    format : "onnx" | "torch"
    inputs : tuple of names
        "scores" [batch, k], or [batch, k, S] of S scorers, as ``kinds`` says; -inf where a list
        ends, inf of distances. Then evidence by its names, [batch, k] each.
    outputs : tuple of names
        "probability" [batch, k] and "answered" [batch].
    kinds : tuple of names
    rule : str
        What is guaranteed.
    opset : int or None
        Of ONNX.
    """

    path: Path
    format: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kinds: tuple[str, ...]
    rule: str
    opset: int | None


def write_rule(
    module: RuleModule,
    path: Path,
    format: str,
    dtype: torch.dtype | None,
    *,
    kinds: tuple[str, ...],
    evidence: tuple[str, ...],
    rule: str,
) -> RuleGraph:
    """Trace and write ``path``; see ``Rule.export``."""
    dtype, outputs = _checked(format, dtype), ("probability", "answered")
    if taken := set(evidence) & set(outputs):
        raise ExportError(f"evidence {taken} has the name of an output: calibrate with another.")
    opset = OPSET if format == "onnx" else None
    graph = RuleGraph(path, format, ("scores", *evidence), outputs, kinds, rule, opset)
    column = torch.ones(2, len(module._rank), dtype=dtype)
    scores = column if len(kinds) == 1 else column[..., None].repeat(1, 1, len(kinds))
    given = [scores, *(column.clone() for _ in evidence)]
    program = _program(module, given, ({0: torch.export.Dim(SIZES[0])},) * len(given))
    write_program(program, path, format, stated(graph), SIZES[:1])
    return graph
