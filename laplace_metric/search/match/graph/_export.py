"""A calibration in a file: distances, labels, epistemic, uncertainty -> match probabilities."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from laplace_metric.errors import ExportError
from laplace_metric.laplace.export import OPSET, check_format, stated, write_program
from laplace_metric.search.match.graph._module import VerdictModule

SIZES = ("batch", "neighbours")


@dataclass(frozen=True)
class VerdictGraph:
    """What was written.

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
        """What the file says of itself."""
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
