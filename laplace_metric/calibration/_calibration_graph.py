"""A calibration as one graph in a file: distances, labels, epistemic -> probabilities.

The rank of a statistic t among m held-out ones is ``#{i : s_i >= t}``, which compares with all, B m
numbers at once. All else are the formulas of this room, of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric.calibration._conformal import count_as_strange, ranks_among_others
from laplace_metric.calibration._graph_files import SIZES, OfConstants, checked_type, traced_program
from laplace_metric.calibration._hits import SearchHits
from laplace_metric.calibration._padding import is_padding
from laplace_metric.calibration.labels._label_posterior import Candidates, LabelPosterior
from laplace_metric.calibration.labels._votes import VOTES, LabelVotes, label_evidence
from laplace_metric.calibration.probability._features import (
    pair_features,
    query_statistics,
    statistic_weights,
)
from laplace_metric.calibration.probability._logistic_score import Score
from laplace_metric.calibration.probability._match_probability import MatchProbability
from laplace_metric.export._file_formats import OPSET, stated, write_program

INPUTS = ("distances", "labels", "epistemic")
OUTPUTS = ("match_probability", "p_value", "unknown", "label", "label_probability", "ambiguity")
OF_PAIRS = 3
"""Outputs that need no labels."""
NOBODY = -(2**63)
"""The label of no neighbour, which no label has."""


class CalibrationModule(OfConstants):
    """distances, labels [B, K], epistemic [B] -> the numbers of ``CalibratedHits``.

    It computes in float64 and answers in the type of the distances. It refuses only fewer
    neighbours than vote.

    Parameters
    ----------
    matcher : MatchProbability
        Match probability of a pair, as a function of its features.
    labeller : LabelPosterior or None
        Probability of each label among the neighbours; None if matches calibrated it.
    statistics : [m, 3]
        Statistics of the known held-out queries, with which p-values compare.
    least : int
        Smallest number of neighbours that are passed, at most 20: those that vote.
    alpha : float
        Share of queries with a match that may be called unknown.
    labelled : bool
        True if labels are among the inputs.
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
        epistemic_weight: int | None,
        least: int,
        alpha: float,
        labelled: bool,
    ) -> None:
        super().__init__()
        self.least, self.n = least, len(statistics)
        self.statistic_weights = statistic_weights(epistemic_weight)
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
        """Return ``outputs``, from tensors in the order of ``inputs``."""
        given = dict(zip(self.inputs, tensors, strict=True))
        labels, distances = given.pop("labels", None), given.pop("distances")
        hits = self._hits(distances.double(), labels, given["epistemic"].double())
        values, exists = pair_features(hits)
        logit = torch.where(exists, self.matcher.score(values), -torch.inf)
        probability = self.matcher(logit)[:, : distances.shape[1]]
        strange = count_as_strange(
            self.columns, self.others, query_statistics(hits), self.statistic_weights
        )
        p_value = (1 + strange).double() / (self.n + 1)
        known = probability.to(distances), p_value.to(distances), p_value <= self.alpha
        if self.labeller is None or labels is None or hits.votes is None:
            return known
        best, label_probability = self.labeller.answer(Candidates.of(logit, hits.votes))
        answer = labels.gather(1, best[:, None])[:, 0]
        ambiguity: Any = hits.votes.ambiguity
        return *known, answer, label_probability.to(distances), ambiguity.to(distances)

    def _hits(self, distance: Tensor, labels: Tensor | None, epistemic: Tensor) -> SearchHits:
        """Return hits with 21 neighbours or more, so that 20 are never all; others do not exist."""
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
    """Return a value of the formulas' types, with tensors in the place of arrays."""
    return kind(*tensors)


@dataclass(frozen=True)
class CalibrationGraph:
    """A file with a calibration.

    Parameters
    ----------
    path : Path
        Name of the file.
    format : "onnx" | "torch"
        Format of the file.
    inputs : tuple of names
        "distances" [batch, neighbours] Euclidean, infinite where there is none; "labels"
        [batch, neighbours] int64 (not where the collection has none); "epistemic" [batch].
    outputs : tuple of names
        Fields of ``CalibratedHits``: "match_probability" [batch, neighbours], "p_value" and
        "unknown" [batch]; where labels calibrated it "label" (int64), "label_probability" and
        "ambiguity" [batch].
    neighbours : int
        Smallest number of neighbours of a query: as many vote.
    alpha : float
        Largest p-value of an unknown query: "unknown" is ``p_value <= alpha``.
    names : tuple of text or None
        Names of the labels: the number of a name is its place here. A name that is not here has any
        number from ``len(names)`` on. None if labels are numbers, which stand for themselves.
    looks_at : tuple of names
        Names of the features on which a match probability depends.
    opset : int or None
        Version of the ONNX operators; None for "torch".
    cross_fitted : bool
        True if the guarantees of the calibration are simulated, not proven. Default: False.
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
    dtype = checked_type(format, dtype)
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


def _traced(module: CalibrationModule, dtype: torch.dtype) -> torch.export.ExportedProgram:
    """Trace for any batch, and for any number of neighbours from those on that vote."""
    least = module.least
    batch, neighbours = torch.export.Dim(SIZES[0]), torch.export.Dim(SIZES[1], min=least)
    pairs = torch.ones(2, least + 3, dtype=dtype)
    kinds = {"distances": pairs, "labels": pairs.long()}
    given = [kinds.get(name, pairs[:, 0].clone()) for name in module.inputs]
    shapes = tuple({0: batch, 1: neighbours} if x.ndim == 2 else {0: batch} for x in given)
    return traced_program(module, given, shapes)
