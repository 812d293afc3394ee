"""Out of Python: a module with the posterior in its buffers, and one graph in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laplace_metric._utils.validation import as_path
from laplace_metric.laplace._fitted import FittedModel
from laplace_metric.models import Inputs

if TYPE_CHECKING:
    from laplace_metric.laplace.export import EmbedderModule, ExportedGraph


class Exportable(FittedModel):
    """A copy that torch can move and compile, and a graph that runs without this package."""

    def as_module(self) -> EmbedderModule:
        """A copy as an ``nn.Module``: inputs -> mean, epistemic, uncertainty; posterior in buffers.

        For ``to(device)``, ``state_dict``, ``torch.compile``: an embedder is no module.

        Raises
        ------
        HeadError
            For a head that is neither linear nor a chain of linear layers.
        WeightsChangedError
            If the head no longer has the weights of the fit.
        """
        from laplace_metric.laplace.export import EmbedderModule

        return EmbedderModule(self.model, self._fitted_to_these_weights(values=True))

    def export(self, path: str | Path, format: str = "onnx", *, example: Inputs) -> ExportedGraph:
        """Write one graph, inputs -> mean, epistemic, uncertainty, that runs without this package.

        The batch is free, and the length of tokens. A model of texts (``models.Sentences``) takes
        its tokenizer's tensors then: the tokenizer is not in the graph. Nothing is refused by a
        graph: NaN in, NaN out.

        Parameters
        ----------
        path : path
            Of one file, which is replaced.
        format : "onnx" | "torch"
            ONNX of opset 18 (extra ``export``), or what ``torch.export.load`` reads.
        example : one batch of inputs, as the model takes it
            Its values do not count; a list of texts where those are the inputs.

        Raises
        ------
        ExportError
            If the model cannot be traced.
        HeadError, WeightsChangedError
            As ``as_module``.
        MissingPackageError
            For "onnx" without the packages onnx and onnxscript.

        Examples
        --------
        >>> import tempfile
        >>> import torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.randn(20, 8), torch.arange(20) % 4
        >>> embedder = LaplaceEmbedder.from_embeddings(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph = embedder.export(f"{folder}/embedder.pt2", "torch", example=x[:2])
        ...     run = torch.export.load(graph.path).module()
        >>> mean, epistemic, uncertainty = run(x)
        >>> mean.shape, epistemic.shape
        (torch.Size([20, 8]), torch.Size([20]))
        """
        from laplace_metric.laplace.export import write_graph

        return write_graph(self.as_module(), self.model, example, as_path("path", path), format)
