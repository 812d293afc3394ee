"""A rule of scores as one graph in a file: scores, evidence -> probabilities, answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from laplace_metric.calibration._graph_files import (
    SIZES,
    CalibratorGraph,
    OfConstants,
    checked_type,
    traced_program,
)
from laplace_metric.calibration._padding import is_padding
from laplace_metric.calibration.scores._score_features import list_features
from laplace_metric.calibration.scores._score_model import BEHIND, FIRST, ListModel
from laplace_metric.errors import ExportError
from laplace_metric.export._file_formats import OPSET, stated, write_program


class RuleModule(OfConstants):
    """scores [B, k] or [B, k, S], evidence [B, k] each -> probability [B, k], answered [B].

    It computes in float64 and answers in the type of the scores. It checks nothing.
    """

    _sign: Tensor
    _weights: Tensor
    _offset: Tensor
    _value: Tensor
    _later: Tensor

    def __init__(self, model: ListModel, kinds: tuple[str, ...], k: int, value: float) -> None:
        super().__init__()
        self._constant("sign", [-1.0 if kind == "distance" else 1.0 for kind in kinds])
        models = [model.first, model.behind][: min(k, 2)]
        self._constant("weights", np.array([each.score.weights for each in models]))
        self._constant("offset", np.array([each.score.offset for each in models]))
        self._constant("value", value)
        self.register_buffer("_later", torch.ones(k, k).triu(1) > 0)
        self.calibrators = torch.nn.ModuleList(CalibratorGraph(each.calibrator) for each in models)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Compute what ``Rule`` computes in NumPy, from tensors in the order of the inputs."""
        scores, *evidence = tensors
        v: Tensor = scores.double().reshape(*scores.shape[:2], -1) * self._sign
        exists = ~is_padding(v).any(2)  # NaN exists, and gives NaN
        v = torch.where(exists[..., None], v, 0.0)
        columns = [column.double() for column in evidence]
        features, parts = list_features(v, exists, columns, self._next_lower), list[Tensor]()
        for number, calibrator in enumerate(self.calibrators):
            logit = features[:, (FIRST, BEHIND)[number]] @ self._weights[number]
            parts.append(calibrator(logit + self._offset[number]))
        p = torch.where(exists, torch.cat(parts, 1), 0.0)
        return p.to(scores), exists[:, 0] & (p[:, 0] >= self._value)

    def _next_lower(self, listed: Tensor) -> Tensor:
        """Return the score behind each [B, k]; all are compared, for ONNX has no stable sort."""
        own, other = listed[:, :, None], listed[:, None]
        behind = (other < own) | ((other == own) & self._later)
        return torch.where(behind, other, -torch.inf).amax(2)


@dataclass(frozen=True)
class RuleGraph:
    """A file with a rule of scores.

    Parameters
    ----------
    path : Path
        Name of the file.
    format : "onnx" | "torch"
        Format of the file.
    inputs : tuple of names
        "scores" [batch, k], or [batch, k, S] of S scorers, of ``kinds``; -inf where a list ends,
        inf for distances. Then evidence by its names, [batch, k] each.
    outputs : tuple of names
        "probability" [batch, k] and "answered" [batch].
    kinds : tuple of names
        Meaning of the scores of each scorer: "similarity", "distance", "score" or "fused".
    rule : str
        Text of the rule, with its guarantee.
    opset : int or None
        Version of the ONNX operators; None for "torch".
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
    dtype, outputs = checked_type(format, dtype), ("probability", "answered")
    if taken := set(evidence) & set(outputs):
        raise ExportError(f"evidence {taken} has the name of an output: calibrate with another.")
    opset = OPSET if format == "onnx" else None
    graph = RuleGraph(path, format, ("scores", *evidence), outputs, kinds, rule, opset)
    column = torch.ones(2, len(module._later), dtype=dtype)
    scores = column if len(kinds) == 1 else column[..., None].repeat(1, 1, len(kinds))
    given = [scores, *(column.clone() for _ in evidence)]
    program = traced_program(module, given, ({0: torch.export.Dim(SIZES[0])},) * len(given))
    write_program(program, path, format, stated(graph), SIZES[:1])
    return graph
