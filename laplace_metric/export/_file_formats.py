"""File formats of a graph: ONNX and ``torch.export``, with metadata that describe it."""

from __future__ import annotations

import inspect
import json
import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from laplace_metric._utils import __version__
from laplace_metric._utils.validation import check_name
from laplace_metric.errors import ExportError, InputError, MissingPackageError
from laplace_metric.io import writing

FORMATS = ("onnx", "torch")
ENDS = {"onnx": (".onnx",), "torch": (".pt2", ".pt", ".pth")}
"""Ends of the names of files by their format, the usual one first."""
OPSET = 18
"""Of ONNX."""
METADATA = "laplace_metric.json"
"""Next to the graph in a file of ``torch.export``; the properties of an ONNX file are the same."""
INSTALL = "pip install 'laplace-metric[export]'"


def check_format(format: str) -> None:
    """Raise an error unless the format is one of ``FORMATS`` and its packages are there.

    Raises
    ------
    UnknownNameError
        For another format.
    MissingPackageError
        For "onnx" without the packages onnx and onnxscript, or with an older torch.
    """
    check_name("format", format, FORMATS)
    if format != "onnx":
        return
    if "dynamo" not in inspect.signature(torch.onnx.export).parameters:
        raise MissingPackageError("torch>=2.6", "format='onnx'", "pip install 'torch>=2.6'")
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise MissingPackageError(package, "format='onnx'", INSTALL)


def stated(graph: Any) -> dict[str, str]:
    """Return the metadata of a file: the fields of a dataclass as JSON, without its location."""
    fields = {k: v for k, v in asdict(graph).items() if k not in ("path", "format", "opset")}
    return {"laplace_metric": __version__, **{k: json.dumps(v) for k, v in fields.items()}}


def write_program(
    program: torch.export.ExportedProgram,
    path: Path,
    format: str,
    metadata: dict[str, str],
    sizes: Sequence[str],
) -> None:
    """Replace ``path`` by a graph.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Traced graph to write.
    path : Path
        Name of the file, which is replaced.
    format : "onnx" | "torch"
        Format of the file.
    metadata : dict of text
        Result of ``stated``; "inputs" and "outputs" name those of the graph, in its order.
    sizes : sequence of names
        Names of the free dimensions of an input, from the first on.

    Raises
    ------
    InputError
        For a name that ends as files of the other format do.
    ExportError
        If ONNX has no form of it.
    WriteError
        If it cannot be written; an old file is kept.
    """
    for other, ends in ENDS.items():
        if other != format and path.suffix.lower() in ends:
            raise InputError(
                f"path={str(path)!r} ends as format={other!r} does, and format={format!r} is "
                f"written: end it in {ENDS[format][0]}, or pass format={other!r}."
            )
    if format != "onnx":
        with writing(path) as temporary, temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={METADATA: json.dumps(metadata)})
        return
    inputs, outputs = (json.loads(metadata[name]) for name in ("inputs", "outputs"))
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    registration.addFilter(_needs_no_torchvision)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            onnx = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=inputs,
                output_names=outputs,
            )
    except Exception as error:
        raise ExportError(f"ONNX has no form of this graph: {str(error)[:300]}") from error
    finally:
        registration.removeFilter(_needs_no_torchvision)
    assert onnx is not None
    _rename_inner(onnx.model.graph, {*inputs, *outputs})
    _name_sizes(onnx.model.graph, sizes)
    onnx.model.metadata_props.update(metadata)
    with writing(path) as temporary:
        onnx.save(temporary, external_data=False)


def _needs_no_torchvision(record: logging.LogRecord) -> bool:
    return "torchvision is not installed" not in record.getMessage()


def _rename_inner(graph: Any, names: set[str]) -> None:
    """Rename inner values that have the name of an input or output: the mean of a pooling layer."""
    outer = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for node in graph:
        for value in node.outputs:
            if value.name in names and id(value) not in outer:
                value.name = f"inner.{value.name}"


def _name_sizes(graph: Any, sizes: Sequence[str]) -> None:
    """Name the free sizes of the inputs wherever they stand."""
    names: dict[str, str] = {}
    for value in graph.inputs:
        for size, name in zip(value.shape, sizes, strict=False):
            if not isinstance(size, int):
                names.setdefault(str(size.value), name)
    pattern = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names))
    values = [*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)]
    for value in values:
        for i, size in enumerate(value.shape or ()):
            if not isinstance(size, int) and size.value is not None:
                value.shape[i] = pattern.sub(lambda found: names[found[0]], str(size.value))
