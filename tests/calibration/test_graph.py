"""A graph of a calibration says what ``Calibration.apply`` says; ONNX needs ``[export]``."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import Calibration, Rule, calibrate_scores
from laplace_metric.calibration._calibration_graph import (
    CalibrationGraph,
    CalibrationModule,
)
from laplace_metric.calibration._graph_files import KnotTable
from laplace_metric.calibration.probability import _match_probability
from laplace_metric.calibration.probability._calibrators import CALIBRATORS, Calibrator
from laplace_metric.errors import ExportError, InputError, MissingPackageError, UnknownNameError
from laplace_metric.export import _file_formats
from laplace_metric.export._file_formats import OPSET
from laplace_metric.search import Index

pytestmark = pytest.mark.filterwarnings("ignore")
PACKAGES = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(PACKAGES), reason=f"needs {', '.join(PACKAGES)}")
FORMATS = ["torch", pytest.param("onnx", marks=needs_onnx)]
INPUTS = ("distances", "labels", "epistemic")
OUTPUTS = ("match_probability", "p_value", "unknown", "label", "label_probability", "ambiguity")
METADATA = "laplace_metric.json"
"""Names by which other programs read a graph."""
EXACT, CLOSE = 1e-12, 1e-6
"""Of float64; of numbers that left as float32."""
SETS = ("distance", "portable")


def points(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(700) % 12
    centres = 2 * torch.randn(12, 6, generator=g)
    return centres[y] + 1.2 * torch.randn(700, 6, generator=g), y


X, Y = points()
NAMES = np.array([f"class {i:02d}" for i in range(12)])


@pytest.fixture(scope="module")
def embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder.from_embeddings(
        X[:200], Y[:200], prior_precision=20.0, distance="arccos"
    )


def built(embedder: LaplaceEmbedder, labels: Any = Y, n: int = 300, **how: Any) -> Index:
    index = embedder.index(X[:n], labels[:n], progress=False)
    index.calibrate(X[300:600], labels[300:600], **{"portable": True, **how})
    return index


@pytest.fixture(scope="module")
def index(embedder) -> Index:
    return built(embedder)


def neighbours(index: Index, k: int = 25, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Of the last hundred, as a graph takes them; names by their place."""
    found = index.search(X[600:], k=k)
    labels = found.labels
    codes = np.searchsorted(NAMES, labels) if labels.dtype.kind in "UO" else np.asarray(labels)
    numbers = (found.distance, found.epistemic)
    distance, epistemic = (torch.as_tensor(np.asarray(x), dtype=dtype) for x in numbers)
    return [distance, torch.as_tensor(codes), epistemic]


def applied(calibration: Calibration, tensors: list[Tensor], alpha: float = 0.05) -> list[Any]:
    distance, labels, epistemic = tensors
    verdict = calibration.apply(distance, labels, epistemic=epistemic, alpha=alpha)
    return [getattr(verdict, name) for name in OUTPUTS]


def module_of(calibration: Calibration, alpha: float = 0.05, labelled: bool = True) -> nn.Module:
    least = min(20, calibration.n_items)
    parts = calibration.matcher, calibration.labeller, calibration.statistics
    weight = calibration.epistemic_weight
    return CalibrationModule(
        *parts, epistemic_weight=weight, least=least, alpha=alpha, labelled=labelled
    )


def run(graph: CalibrationGraph, tensors: list[Tensor]) -> list[Tensor]:
    if graph.format == "torch":
        return list(torch.export.load(graph.path).module()(*tensors))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph.path))
    given = {name: t.numpy() for name, t in zip(graph.inputs, tensors, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, given)]


def same(found: list[Tensor], expected: list[Any], atol: float) -> None:
    assert len(found) == len(expected)
    for name, a, b in zip(OUTPUTS, found, expected, strict=True):
        torch.testing.assert_close(a.to(b), b, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("features", SETS)
@pytest.mark.parametrize("calibrator", list(CALIBRATORS))
def test_every_kind_of_calibration(embedder, monkeypatch, features, calibrator):
    monkeypatch.setattr(_match_probability, "PORTABLE", features)
    monkeypatch.setattr(_match_probability, "CALIBRATORS", (calibrator,))
    calibration = built(embedder).calibration
    assert calibration.matcher.chosen == f"{features}, {calibrator}"
    tensors = neighbours(built(embedder))
    expected = applied(calibration, tensors)
    assert expected[0].std() > 0.05  # it says something
    same(module_of(calibration)(*tensors), expected, EXACT)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("calibrator", "dtype"), [("isotonic", torch.float64), ("beta", torch.float32)]
)
def test_a_file(embedder, monkeypatch, tmp_path, format, calibrator, dtype):
    monkeypatch.setattr(_match_probability, "CALIBRATORS", (calibrator,))
    index = built(embedder, NAMES[Y])
    calibration = index.calibration
    graph = calibration.export(tmp_path / "verdict", format, alpha=0.2, dtype=dtype)
    assert (graph.inputs, graph.outputs) == (INPUTS, OUTPUTS)
    assert graph.names == tuple(NAMES)
    assert graph.opset == (OPSET if format == "onnx" else None)
    for k, rows in ((20, 100), (21, 1), (50, 7)):
        tensors = [x[:rows] for x in neighbours(index, k, dtype)]
        found = run(graph, tensors)
        assert all(x.dtype == dtype for x in found if x.is_floating_point())
        same(found, applied(calibration, tensors, 0.2), EXACT if dtype.itemsize == 8 else CLOSE)
    with pytest.raises(Exception, match="20|idx=19"):
        run(graph, [x[:, :19] if x.ndim == 2 else x for x in tensors])


@pytest.fixture(scope="module", params=list(CALIBRATORS))
def any_calibration(embedder, request) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_match_probability, "CALIBRATORS", (request.param,))
        return built(embedder).calibration


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_missing_neighbours_anywhere_and_labels_of_any_number(any_calibration, data):
    q, k = data.draw(st.integers(1, 4)), data.draw(st.integers(20, 30))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    distance = 6 * torch.rand(q, k, generator=g, dtype=torch.float64).sort(1).values
    if data.draw(st.booleans()):
        distance = distance.round()  # ties
    distance = torch.where(torch.rand(q, k, generator=g) < 0.3, torch.inf, distance)
    if data.draw(st.booleans()):
        distance[0] = torch.inf
    labels = torch.randint(-2, 2, (q, k), generator=g) * data.draw(st.sampled_from([1, 2**40]))
    epistemic = 3 * torch.randn(q, generator=g, dtype=torch.float64)
    tensors = [distance, labels, epistemic]
    same(module_of(any_calibration)(*tensors), applied(any_calibration, tensors), EXACT)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**20))
def test_knots_are_those_of_numpy(n, seed):
    g = np.random.default_rng(seed)
    numbers = g.random((2, n)).cumsum(1)
    numbers[1] /= numbers[1, -1] + 0.1
    scores = np.concatenate([3 * g.random(40) - 0.5, numbers[0]])
    expected = Calibrator("isotonic", numbers)(scores)
    found = KnotTable(numbers)(torch.from_numpy(scores))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("format", FORMATS)
def test_a_collection_of_fewer_items_than_vote(embedder, tmp_path, format):
    small = embedder.index(X[:15], Y[:15] % 3, progress=False)
    small.calibrate(X[300:600], Y[300:600] % 3, portable=True)
    tensors = neighbours(small, 15)
    graph = small.calibration.export(tmp_path / "v", format, dtype=torch.float64)
    assert graph.neighbours == 15
    same(run(graph, tensors), applied(small.calibration, tensors), EXACT)
    grown = [torch.cat([x, x], 1) if x.ndim == 2 else x for x in tensors]  # 20 of 30 vote
    same(run(graph, grown), applied(small.calibration, grown), EXACT)


@pytest.mark.parametrize("format", FORMATS)
def test_without_labels(embedder, tmp_path, format):
    index = embedder.index((x for x in [X[:300]]), progress=False)
    matches = [np.flatnonzero(Y[:300] == y) for y in Y[300:600]]
    index.calibrate(X[300:600], matches=matches, portable=True)
    graph = index.calibration.export(tmp_path / "v", format, dtype=torch.float64)
    assert (graph.inputs, graph.outputs) == (("distances", *INPUTS[2:]), OUTPUTS[:3])
    found = index.search(X[600:], k=20)
    tensors = [x.double() for x in (found.distance, found.epistemic)]
    expected = [found.match_probability, found.p_value, found.unknown]
    for name, a, b in zip(graph.outputs, run(graph, tensors), expected, strict=True):
        torch.testing.assert_close(a.to(b), b, rtol=0, atol=CLOSE, msg=name)


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_file_says_of_itself(embedder, tmp_path, format):
    calibration = built(embedder, NAMES[Y]).calibration
    graph = calibration.export(tmp_path / "v", format, alpha=0.1)
    if format == "onnx":
        import onnx
        import onnxruntime

        model = onnx.load(graph.path)
        onnx.checker.check_model(model, full_check=True)
        assert [(x.domain, x.version) for x in model.opset_import] == [("", OPSET)]
        session = onnxruntime.InferenceSession(str(graph.path))
        facts = session.get_modelmeta().custom_metadata_map
        shapes = [x.shape for x in session.get_inputs()]
        assert shapes == [["batch", "neighbours"]] * 2 + [["batch"]]
        assert [x.shape for x in session.get_outputs()] == [shapes[0], *[["batch"]] * 5]
    else:
        extra = {METADATA: ""}
        torch.export.load(graph.path, extra_files=extra)
        facts = json.loads(extra[METADATA])
    stated = {k: json.loads(v) for k, v in facts.items() if k != "laplace_metric"}
    assert stated["names"] == list(NAMES)
    assert stated["looks_at"] == list(calibration.looks_at)
    assert (stated["alpha"], stated["neighbours"]) == (0.1, 20)
    assert stated["outputs"] == list(OUTPUTS)


@pytest.mark.parametrize("format", FORMATS)
def test_a_p_value_of_alpha_is_unknown(index, tmp_path, format):
    """Also where float32 would round alpha down."""
    tensors = neighbours(index)
    p_value = applied(index.calibration, tensors)[1]
    alpha = next(float(p) for p in p_value if float(p.float()) < p < 1)
    graph = index.calibration.export(tmp_path / "v", format, alpha=alpha, dtype=torch.float64)
    unknown = run(graph, tensors)[2]
    assert torch.equal(unknown, p_value <= alpha)
    assert bool(unknown[p_value == alpha].all())


def test_numbers_stand_for_themselves(index, tmp_path):
    assert index.calibration.export(tmp_path / "v", "torch").names is None


def test_refusals(embedder, index, tmp_path, monkeypatch):
    path = tmp_path / "v"
    path.write_text("what was there")
    with pytest.raises(ExportError, match="class model.*portable=True"):
        built(embedder, portable=False).calibration.export(path, "torch")
    with pytest.raises(UnknownNameError, match="format='tflite'"):
        index.calibration.export(path, "tflite")
    with pytest.raises(InputError, match="alpha=1"):
        index.calibration.export(path, "torch", alpha=1)
    with pytest.raises(InputError, match=r"dtype=torch.float16: pass torch.float32"):
        index.calibration.export(path, "torch", dtype=torch.float16)
    with pytest.raises(InputError, match="path=3"):
        index.calibration.export(3, "torch")
    monkeypatch.setattr(_file_formats, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"laplace-metric\[export\]"):
        index.calibration.export(path)
    assert path.read_text() == "what was there"


@needs_onnx
@pytest.mark.skipif(find_spec("faiss") is None, reason="needs faiss")
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_two_graphs_and_faiss_are_an_index(tmp_path, distance):
    """embedder.onnx -> FAISS -> verdict.onnx: no torch, and what ``Index.search`` says."""
    import faiss
    import onnxruntime

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
    embedder = LaplaceEmbedder(model, distance=distance).fit([(X[:200], Y[:200])], progress=False)
    index = embedder.index(X[:300], NAMES[Y[:300]], rank_by="mean", progress=False)
    index.calibrate(X[300:600], NAMES[Y[300:600]], portable=True)
    seen = embedder.export(tmp_path / "embedder.onnx", example=X[:2])
    said = index.calibration.export(tmp_path / "verdict.onnx")
    first, second = (onnxruntime.InferenceSession(str(g.path)) for g in (seen, said))

    items, _, _ = first.run(None, {"input": X[:300].numpy()})
    engine = faiss.IndexFlatL2(items.shape[1])
    engine.add(items)
    mean, epistemic, _ = first.run(None, {"input": X[600:].numpy()})
    squared, rows = engine.search(mean, 20)
    tensors = {"distances": np.sqrt(squared), "labels": Y[:300].numpy()[rows]}
    tensors |= {"epistemic": epistemic}
    verdict = dict(zip(said.outputs, second.run(None, tensors), strict=True))

    expected = index.search(X[600:], k=20)
    np.testing.assert_array_equal(rows, expected.ids)
    for name in ("match_probability", "label_probability", "ambiguity"):
        wanted = getattr(expected, name)
        np.testing.assert_allclose(verdict[name], wanted, rtol=0, atol=1e-5, err_msg=name)
    assert [said.names[code] for code in verdict["label"]] == list(expected.label)
    gap = np.abs(verdict["p_value"] - np.asarray(expected.p_value)) * (
        1 + len(index.calibration.statistics)
    )
    assert gap.max() < 2.5  # held-out queries whose rank the last bits decide


def lists(n: int, kinds: tuple[str, ...], evidence: bool, seed: int) -> tuple[Any, Any, dict]:
    """Scores with ties and lists that end early, relevance, and evidence."""
    g = np.random.default_rng(seed)
    length = g.integers(1, 7, n)[:, None] if seed % 2 else 6
    columns = []
    for kind in kinds:
        v = np.sort(np.round(g.normal(size=(n, 6)), 1), 1)[:, :: 1 if kind == "distance" else -1]
        if columns:  # a second scorer has another order, and may know fewer hits
            v, length = g.permuted(v, axis=1), np.maximum(length - 1, 1)
        columns.append(
            np.where(np.arange(6) < length, v, np.inf if kind == "distance" else -np.inf)
        )
    first = columns[0] * (-1 if kinds[0] == "distance" else 1)
    relevant = (np.arange(6) < length) & (first + g.normal(size=(n, 6)) > 0.5)
    scores = columns[0] if len(kinds) == 1 else np.stack(columns, -1)
    return scores, relevant, {"age": g.normal(size=(n, 6))} if evidence else {}


@cache
def of_lists(kinds, evidence, seed):
    scores, relevant, columns = lists(400, kinds, evidence, seed)
    return calibrate_scores(scores, relevant, kind=kinds, evidence=columns)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", CALIBRATORS)
@pytest.mark.parametrize(
    ("kinds", "evidence", "seed"),
    [(("similarity",), False, 0), (("distance",), True, 1), (("distance", "score"), True, 3)],
)
def test_a_rule_of_scores_says_the_same_in_a_graph(format, kind, kinds, evidence, seed, tmp_path):
    calibration = of_lists(kinds, evidence, seed)
    g = np.random.default_rng(9)
    numbers = {"beta": [[1.3, 0.7, 0.2], [0.0] * 3], "isotonic": [[-2, 0, 1], [0.1, 0.5, 0.9]]}
    calibrator = Calibrator(kind, np.array(numbers.get(kind, np.zeros((2, 0))), float))
    first, behind = calibration.model.first, calibration.model.behind
    scores = [replace(first.score, weights=g.normal(size=len(first.score.weights))) for _ in "ab"]
    model = replace(
        calibration.model,
        first=replace(first, score=scores[0], calibrator=calibrator),
        behind=replace(behind, score=scores[1]),
    )
    calibration = replace(calibration, model=model)
    new, _, columns = lists(37, kinds, evidence, seed + 10)
    expected = calibration.probability(new, **columns)
    middle = (
        np.unique(expected[:, 0])[:2].mean() if kind == "isotonic" else np.median(expected[:, 0])
    )
    rule = Rule(middle + 1e-9, scores=calibration)
    graph = rule.export(tmp_path / "rule", format, dtype=torch.float64)
    given = [new, *columns.values()]
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(graph.path)
        p, accept = session.run(None, dict(zip(graph.inputs, given, strict=True)))
    else:
        run = torch.export.load(graph.path).module()
        p, accept = (x.numpy() for x in run(*map(torch.from_numpy, given)))
    np.testing.assert_allclose(p, expected, rtol=0, atol=EXACT)
    np.testing.assert_array_equal(accept, rule(new, **columns).answered)
    assert 0 < accept.mean() < 1


@needs_onnx
def test_a_rule_of_float32_and_names_that_an_output_has(tmp_path):
    import onnxruntime

    scores, relevant, _ = lists(400, ("similarity",), False, 0)
    calibration = calibrate_scores(scores, relevant, cross_fit=5)
    rule = calibration.guarantee(precision=0.6)
    graph = rule.export(tmp_path / "rule.onnx")
    session = onnxruntime.InferenceSession(graph.path)
    p, _ = session.run(None, {"scores": scores.astype(np.float32)})
    assert p.dtype == np.float32
    np.testing.assert_allclose(p, calibration.probability(scores), rtol=0, atol=CLOSE)
    assert json.loads(session.get_modelmeta().custom_metadata_map["rule"]) == rule.sentence
    with pytest.raises(InputError, match="float16"):
        rule.export(tmp_path / "rule.onnx", dtype=torch.float16)
    other = replace(calibration, evidence=("answered",))
    with pytest.raises(ExportError, match="answered"):
        replace(rule, scores=other).export(tmp_path / "rule.onnx")
