"""An embedder as one graph in a file: inputs -> mean, epistemic, uncertainty.

The graph takes a batch of any size and needs no Python.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor
from laplace_metric.errors import ExportError, InputError
from laplace_metric.export._file_formats import OPSET, check_format, stated, write_program
from laplace_metric.export._module import EmbedderModule
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models import Sentences
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import device_of

# One graph in a file: inputs -> mean, epistemic, uncertainty; any batch, no Python needed.


SIZES = ("batch", "length")
"""Names of the free sizes of an input."""


@dataclass(frozen=True)
class ExportedGraph:
    """A graph in a file.

    Parameters
    ----------
    path : Path
        File of the graph.
    format : "onnx" | "torch"
        Format of the file.
    inputs : tuple of names
        Names of the inputs, in the order in which the graph takes them: [batch, ...], or whole
        numbers [batch, length].
    outputs : tuple of names
        Names of the outputs: "mean" [batch, Z], "epistemic" [batch], "uncertainty" [batch]; and
        "predictive" [batch, Z + A], if it was asked for.
    epistemic : "classes and points" | "points" | "uncertainty"
        Meaning of the second output: what it compares an input with.
    spherical : bool
        True if the mean has unit length.
    opset : int or None
        Opset of an ONNX file.
    """

    path: Path
    format: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    epistemic: str
    spherical: bool
    opset: int | None

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata stored in the file."""
        return stated(self)


class _ByPlace(nn.Module):
    """The module with tensors in the order of ``names``, as every graph takes them."""

    def __init__(self, module: EmbedderModule, names: Sequence[str] | None) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.names is None:
            return tuple(self.module(*tensors))
        return tuple(self.module(dict(zip(self.names, tensors, strict=True))))


def write_graph(
    module: EmbedderModule, model: nn.Module, example: ModelInput, path: Path, format: str
) -> ExportedGraph:
    """Trace on ``example`` and write ``path``; see ``LaplaceEmbedder.export``.

    The first dimension of every input is free, as is the length of tokens.

    Raises
    ------
    ExportError
        If the model cannot be traced: its Python uses values, or fixes the batch.
    """
    check_format(format)
    named = _named(model, example, device_of(module))
    opset = OPSET if format == "onnx" else None
    kind, spherical = module.compares_with, module.spherical
    graph = ExportedGraph(path, format, tuple(named), module.outputs, kind, spherical, opset)
    by_name = isinstance(model, Sentences) or isinstance(example, Mapping)
    tensors = tuple(torch.cat([x, x]) if len(x) == 1 else x for x in named.values())
    batch, length = torch.export.Dim("batch"), torch.export.Dim.AUTO
    shapes = tuple(
        {0: batch, 1: length} if x.ndim == 2 and not x.is_floating_point() else {0: batch}
        for x in tensors
    )
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                _ByPlace(module, list(named) if by_name else None).eval(),
                tensors,
                dynamic_shapes={"tensors": shapes},
                strict=False,
            )
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"the model cannot be traced as one graph with a free batch: {reason[:300]} Its "
            "forward pass may neither look at values nor fix the number of rows (x.shape[0] "
            "leaves it free, len(x) fixes it)."
        ) from error
    write_program(program, path, format, graph.metadata, SIZES)
    return graph


def _named(model: nn.Module, example: ModelInput, device: torch.device) -> dict[str, Tensor]:
    """Return tensors [B, ...] of an example, by the names that the graph gives them."""
    values: dict[str, Any]
    if isinstance(model, Sentences) and not isinstance(example, Mapping):
        if not isinstance(example, list):
            raise InputError("example of a model of texts: pass a list of strings, or its tokens.")
        tokens = model.model.preprocess(example, prompt=model.prompt)
        values = {name: value for name, value in tokens.items() if isinstance(value, Tensor)}
    elif isinstance(example, Mapping):
        values = {str(name): value for name, value in example.items()}
    elif isinstance(example, tuple) and all(isinstance(x, Tensor) for x in example):
        values = {f"input_{i}": value for i, value in enumerate(example)}
    else:
        values = {"input": as_tensor("example", example)}
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.ndim == 0 or not len(value):
            shown = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InputError(
                f"example has no rows of tensors ({name} is {shown}): pass one batch, as the model "
                "takes it."
            )
    moved: dict[str, Tensor] = to_device(values, device)
    return moved
