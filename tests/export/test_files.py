"""A graph in a file says what the embedder says, for any batch; ONNX needs the extra ``export``."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import (
    ExportError,
    HeadError,
    InputError,
    MissingPackageError,
    NotFittedError,
    UnknownNameError,
    WriteError,
)
from laplace_metric.export import _file_formats
from laplace_metric.export._file_formats import OPSET
from laplace_metric.search import Predictive
from tests.export.problems import CASES, D, fitted, inputs

OUTPUTS = ("mean", "epistemic", "uncertainty")
"""What other programs ask a graph for by name."""

pytestmark = pytest.mark.filterwarnings("ignore")
QUERIES = inputs(33, seed=2)[0]
PACKAGES = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(PACKAGES), reason=f"needs {', '.join(PACKAGES)}")
EXACT, CLOSE = 1e-10, 1e-5
PLAIN = {"distance": "euclidean", "hessian": "positives"}
"""Uncertainty of directions is a graph of two dozen nodes more, which is not the subject here."""
SOME = CASES[::5]
"""Every model, structure and distance."""


def onnx_session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path))


def run_onnx(path: Path, *tensors: Tensor) -> list[Tensor]:
    session = onnx_session(path)
    named = {x.name: t.numpy() for x, t in zip(session.get_inputs(), tensors, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, named)]


def run_torch(path: Path, *tensors: Tensor) -> list[Tensor]:
    return list(torch.export.load(path).module()(*tensors))


def relative_errors(found: list[Tensor], embedder: LaplaceEmbedder, x: Any) -> list[float]:
    """Relative to the largest value; of near + far, which may cancel, to that of the parts."""
    seen = embedder(x)
    expected = (seen.mean, seen.epistemic, seen.uncertainty)
    sizes = [value.abs().max() for value in expected]
    with suppress(NotFittedError):
        sizes[1] = (seen.near.abs() + seen.far.abs()).max()
    return [
        float((a - b).abs().max() / size) for a, b, size in zip(found, expected, sizes, strict=True)
    ]


@pytest.mark.parametrize(("name", "structure", "distance"), SOME)
def test_torch(tmp_path, name, structure, distance):
    embedder = fitted(name, structure, distance)
    graph = embedder.export(tmp_path / "e.pt2", "torch", example=QUERIES[:1])
    assert (graph.inputs, graph.outputs, graph.opset) == (("input",), OUTPUTS, None)
    for n in (33, 1):
        found = run_torch(graph.path, QUERIES[:n])
        assert max(relative_errors(found, embedder, QUERIES[:n])) < EXACT


@needs_onnx
@pytest.mark.parametrize(("name", "structure", "distance"), SOME)
def test_onnx(tmp_path, name, structure, distance):
    embedder = fitted(name, structure, distance, torch.float32)
    graph = embedder.export(tmp_path / "e.onnx", example=QUERIES[:2].float())
    assert graph.opset == OPSET
    for n in (33, 1):
        x = QUERIES[:n].float()
        assert max(relative_errors(run_onnx(graph.path, x), embedder, x)) < CLOSE


@needs_onnx
def test_what_an_onnx_file_says_of_itself(tmp_path):
    import onnx

    path = tmp_path / "e.onnx"
    embedder = fitted("linear", dtype=torch.float32)
    embedder.export(path, example=QUERIES[:2].float())
    model, session = onnx.load(path), onnx_session(path)
    onnx.checker.check_model(model, full_check=True)
    assert [x.version for x in model.opset_import if x.domain == ""] == [OPSET]
    assert {x.domain for x in model.opset_import} == {""}
    (given,), outputs = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("input", ["batch", D])
    assert [(x.name, x.shape) for x in outputs] == [
        ("mean", ["batch", 5]), ("epistemic", ["batch"]), ("uncertainty", ["batch"]),
    ]  # fmt: skip
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["epistemic"]) == "classes and points"
    assert json.loads(facts["spherical"]) is True


@needs_onnx
def test_a_mean_inside_the_model_keeps_its_place(tmp_path):
    class Pools(nn.Module):
        def forward(self, x):
            return x[..., None, None].mean((2, 3))

    model = nn.Sequential(Pools(), nn.Linear(D, 4), nn.Linear(4, 3))
    x, y = inputs(dtype=torch.float32)
    embedder = LaplaceEmbedder(model, **PLAIN).fit([(x, y)], progress=False)
    graph = embedder.export(tmp_path / "e.onnx", example=x)
    assert max(relative_errors(run_onnx(graph.path, x), embedder, x)) < CLOSE


class Tokens(nn.Module):
    """One vector a text, by words and mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None].float()
        return self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))


def tokens(n: int, length: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(length)
    ids = torch.randint(0, 20, (n, length), generator=g)
    return {"input_ids": ids, "attention_mask": (ids > 3).long().index_fill(1, torch.tensor(0), 1)}


@pytest.mark.parametrize("format", ["torch", pytest.param("onnx", marks=needs_onnx)])
def test_tokens_of_any_length(tmp_path, format):
    torch.manual_seed(0)
    embedder = LaplaceEmbedder(Tokens(), **PLAIN).fit([(tokens(60, 5), torch.arange(60) % 3)])
    path = tmp_path / ("e.pt2" if format == "torch" else "e.onnx")
    graph = embedder.export(path, format, example=tokens(2, 4))
    assert graph.inputs == ("input_ids", "attention_mask")
    if format == "onnx":
        assert [x.shape for x in onnx_session(path).get_inputs()] == [["batch", "length"]] * 2
    run = run_torch if format == "torch" else run_onnx
    for n, length in ((9, 7), (1, 3)):
        x = tokens(n, length)
        assert max(relative_errors(run(path, *x.values()), embedder, x)) < CLOSE


@pytest.mark.parametrize("looks", ["values", "rows"])
def test_a_model_that_cannot_be_traced(tmp_path, looks):
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(D, 3).double()

        def forward(self, x):
            if looks == "values":
                return self.head(x if float(x.sum()) > 0 else x + 0)
            return self.head(x.reshape(3, len(x) // 3, D).flatten(0, 1))

    x, y = inputs()
    embedder = LaplaceEmbedder(Looks()).fit([(x, y)], progress=False)
    path = tmp_path / "e.pt2"
    path.write_text("what was there")
    with pytest.raises(ExportError, match="cannot.*one graph"):
        embedder.export(path, "torch", example=x[:6])
    assert path.read_text() == "what was there"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(0, D), "no rows"),
        ({"x": "text"}, "example is a mapping of single texts"),
        (np.array(["a"]), "example has dtype"),
        (
            torch.zeros(2, D + 1).double(),
            rf"^example: .* inputs \[2, {D + 1}\].*: pass inputs of the size",
        ),
    ],
)
def test_examples_that_are_none(tmp_path, example, message):
    with pytest.raises(InputError, match=message):
        fitted("linear").export(tmp_path / "e.pt2", "torch", example=example)


@needs_onnx
@pytest.mark.parametrize(
    ("name", "format", "other"), [("e.pt2", "onnx", "torch"), ("e.onnx", "torch", "onnx")]
)
def test_a_name_that_ends_as_the_other_format_does_is_refused(tmp_path, name, format, other):
    said = rf"^path=.*{name}.*format='{format}' is written: end it in .*pass format='{other}'"
    with pytest.raises(InputError, match=said):
        fitted("linear").export(tmp_path / name, format, example=QUERIES[:2])
    assert not list(tmp_path.iterdir())


def test_other_refusals(tmp_path, monkeypatch):
    embedder = fitted("linear")
    with pytest.raises(UnknownNameError, match="format='tflite'"):
        embedder.export(tmp_path / "e", "tflite", example=QUERIES)
    with pytest.raises(WriteError):
        embedder.export(tmp_path / "missing" / "e.pt2", "torch", example=QUERIES)
    monkeypatch.setattr(_file_formats, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"laplace-metric\[export\]"):
        embedder.export(tmp_path / "e.onnx", example=QUERIES)


@needs_onnx
@pytest.mark.parametrize(
    ("format", "structure", "distance"),
    [
        *(("onnx", "diag", "euclidean"), ("onnx", "kron", "arccos")),
        *(("torch", "kron", "euclidean"), ("torch", "diag", "arccos")),
    ],
)
def test_predictive_vectors_are_a_fourth_output(tmp_path, structure, distance, format):
    embedder, x = fitted("linear", structure, distance, torch.float32), QUERIES.float()
    graph = embedder.export(tmp_path / "e", format, example=x[:2], predictive_temperature=0.3)
    assert graph.outputs == (*OUTPUTS, "predictive")
    run = run_onnx if format == "onnx" else run_torch
    for n in (33, 1):
        *found, vectors = run(graph.path, x[:n])
        assert max(relative_errors(found, embedder, x[:n])) < CLOSE
        expected = embedder.predictive_vectors(x[:n], temperature=0.3)
        torch.testing.assert_close(vectors, expected, rtol=CLOSE, atol=1e-5)
    colder = embedder.predictive_vectors(x[:1], temperature=0.03)
    assert not torch.allclose(vectors, colder, rtol=CLOSE, atol=1e-5)


class Deep(nn.Module):
    """A convolution, a wide layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.wide, self.head = nn.Conv2d(1, 3, 3), nn.Linear(588, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(self.maps(x).relu().flatten(1)).relu())


@needs_onnx
@pytest.mark.parametrize(
    ("format", "layer", "distance"),
    [
        *(("torch", "wide", "arccos"), ("torch", "maps", "euclidean")),
        *(("torch", False, "arccos"), ("onnx", "wide", "euclidean"), ("onnx", "maps", "arccos")),
    ],
)
def test_a_graph_has_the_query_vectors_of_an_index(tmp_path, distance, layer, format):
    torch.manual_seed(0)
    model, y = Deep().eval(), torch.arange(60) % 5
    x = torch.rand(60, 1, 16, 16) + y[:, None, None, None] / 5
    embedder = LaplaceEmbedder(model, distance=distance, hessian="positives").fit(x, y)
    asked = Predictive(0.5, 5, prior=0.1, centred=True, layer=layer, layer_weight=0.3)
    index = embedder.index(x, y, rank_by=asked, progress=False)
    graph = embedder.export(tmp_path / "e", format, example=x[:2], index=index)
    run = run_onnx if format == "onnx" else run_torch
    for n in (33, 1):
        *_, vectors = run(graph.path, x[:n] + 0.1)
        expected = index.query_vectors(x[:n] + 0.1)
        torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    nearest = torch.cdist(expected, index.engine.vectors).argmin(1)
    assert nearest.tolist() == index.search(x[:1] + 0.1, 1).positions[:, 0].tolist()


def test_only_the_index_of_an_embedder_goes_into_its_graph():
    x, y = torch.randn(40, 8), torch.arange(40) % 4
    one, other = (LaplaceEmbedder.from_embeddings(x + i, y) for i in (0, 1))
    index = other.index(x, y, rank_by="predictive")
    with pytest.raises(InputError, match="another embedder"):
        one.as_module(index=index)
    with pytest.raises(InputError, match="pass.*one of them"):
        other.as_module(index=index, predictive_temperature=1.0)
    with pytest.raises(InputError, match="vectors.*the means"):
        other.as_module(index=other.index(x, y, rank_by="mean"))


def test_predictive_vectors_of_other_heads_and_temperatures_are_refused():
    with pytest.raises(HeadError, match="not one linear"):
        fitted("long chain").as_module(predictive_temperature=1.0)
    with pytest.raises(InputError, match="predictive_temperature=0"):
        fitted("linear").as_module(predictive_temperature=0)
