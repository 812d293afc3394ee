"""A fitted embedder as a module, and as one graph in a file (ONNX, ``torch.export``)."""

from laplace_metric.laplace.export._module import OUTPUTS, EmbedderModule, Numbers
from laplace_metric.laplace.export._write import (
    FORMATS,
    OPSET,
    ExportedGraph,
    exported_program,
    write_graph,
)

__all__ = [
    "FORMATS",
    "OPSET",
    "OUTPUTS",
    "EmbedderModule",
    "ExportedGraph",
    "Numbers",
    "exported_program",
    "write_graph",
]
