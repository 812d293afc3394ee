"""A fitted embedder as a module, and as one graph in a file (ONNX, ``torch.export``)."""

from laplace_metric.laplace.export._files import (
    FORMATS,
    METADATA,
    OPSET,
    check_format,
    stated,
    write_program,
)
from laplace_metric.laplace.export._module import OUTPUTS, EmbedderModule, Numbers
from laplace_metric.laplace.export._write import ExportedGraph, exported_program, write_graph

__all__ = [
    "FORMATS",
    "METADATA",
    "OPSET",
    "OUTPUTS",
    "EmbedderModule",
    "ExportedGraph",
    "Numbers",
    "check_format",
    "exported_program",
    "stated",
    "write_graph",
    "write_program",
]
