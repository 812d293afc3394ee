"""Embedders as ONNX beside PyTorch: ``python -m benchmarks costs --pieces export``.

Two encoders as they come, with an appended head (default settings): EfficientNet-Lite0 fitted on
2,000 CIFAR-10 images, 500 of the test set against 500 FashionMNIST images; MiniLM fitted on the
SciPy summaries of the known sub-packages, the test summaries against those of unknown ones. What
is measured: the largest error of each output relative to its largest value, against PyTorch and
against the same in float64; file size; the median time of a call; and what int8 does to the
numbers: dynamic quantisation by onnxruntime of every product, or of all but the posterior's.

Needs the extra ``export``. Nothing was chosen by these numbers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.datasets import load
from benchmarks.encoders.features import rgb
from benchmarks.encoders.pretrained import EfficientNetLite0, MiniLM
from benchmarks.encoders.texts import load_texts
from benchmarks.examples.texts import known
from benchmarks.records import folder_of, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.evaluation import auroc

N_FIT, N_QUERIES, SIDE, BATCH, REPEATS = 2_000, 500, 32, 50, 30
NUMBERS = ("epistemic", "uncertainty")
POSTERIOR = ("familiarity", "variance")
"""Parts of the module whose products stay float32 in "body"."""


@dataclass(frozen=True)
class Case:
    """A fitted embedder, batches of queries and of OOD inputs, and what a graph takes of them."""

    name: str
    embedder: LaplaceEmbedder
    queries: list[Any]
    ood: list[Any]
    tensors: Callable[[Any], dict[str, Tensor]]


def images(data: str | None) -> Case:
    """EfficientNet-Lite0, CIFAR-10 against FashionMNIST."""

    def batches(dataset: str, split: str, n: int) -> list[tuple[Tensor, Tensor]]:
        parts = rgb(load(dataset, split, data, n), BATCH)
        return [(F.interpolate(x, (SIDE, SIDE), mode="bilinear"), y) for x, y in parts]

    embedder = LaplaceEmbedder(EfficientNetLite0(), head="append")
    embedder.fit(batches("cifar10", "train", N_FIT), progress=False)
    sets = (("cifar10", "test"), ("fashion-mnist", "test"))
    queries, ood = ([x for x, _ in batches(*which, N_QUERIES)] for which in sets)
    return Case("EfficientNet-Lite0", embedder, queries, ood, lambda x: {"input": x})


def texts() -> Case:
    """MiniLM, known against unknown sub-packages of SciPy."""
    model = MiniLM()
    train, test = load_texts("train"), load_texts("test")
    embedder = LaplaceEmbedder(model, head="append")
    embedder.fit(known(train, yes=True).batches(BATCH), progress=False)
    parts = (known(test, yes=yes, limit=N_QUERIES).batches(BATCH) for yes in (True, False))
    queries, ood = ([x for x, _ in part] for part in parts)

    def tokens(x: list[str]) -> dict[str, Tensor]:
        found = model.model.preprocess(x, prompt=model.prompt)
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    return Case("MiniLM", embedder, queries, ood, tokens)


Run = Callable[[Any], dict[str, Tensor]]
"""A batch -> mean, epistemic, uncertainty."""


def in_torch(case: Case) -> Run:
    """The embedder itself."""

    def run(x: Any) -> dict[str, Tensor]:
        seen = case.embedder(x)
        return {"mean": seen.mean, "epistemic": seen.epistemic, "uncertainty": seen.uncertainty}

    return run


def in_onnx(case: Case, path: Path) -> Run:
    """A file, on as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    names = [value.name for value in session.get_outputs()]

    def run(x: Any) -> dict[str, Tensor]:
        given = {name: value.numpy() for name, value in case.tensors(x).items()}
        return dict(zip(names, map(torch.from_numpy, session.run(None, given)), strict=True))

    return run


def quantised(path: Path, *, body_only: bool) -> Path:
    """Dynamic int8 of every product, or of those that are not the posterior's."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kept = []
    for node in onnx.load(path).graph.node if body_only else ():
        scopes = {p.key: p.value for p in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "")
        if any(f"'module.{part}" in scopes for part in POSTERIOR):
            kept.append(node.name)
    if body_only and not kept:
        raise RuntimeError("no node of the graph says that it is the posterior's")
    target = path.with_suffix(".body.onnx" if body_only else ".all.onnx")
    how: dict[str, Any] = {"weight_type": QuantType.QUInt8, "nodes_to_exclude": kept}
    quantize_dynamic(path, target, **how)
    return target


def outputs(run: Run, batches: list[Any]) -> dict[str, Tensor]:
    """Over all batches."""
    parts = [run(x) for x in batches]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def milliseconds(run: Run, x: Any) -> float:
    """Median over calls, after three that do not count."""
    for _ in range(3):
        run(x)
    took = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run(x)
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took)


def in_float64(case: Case) -> Run:
    """What rounds least: the same weights, every product in float64."""
    module = case.embedder.as_module().double()

    def run(x: Any) -> dict[str, Tensor]:
        given = case.tensors(x)
        wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
        with torch.no_grad():
            found = module(*wide.values()) if "input" in wide else module(**wide)
        return found._asdict()

    return run


def row_of(case: Case, what: str, run: Run, path: Path | None, truth: Any) -> dict[str, Any]:
    """One way to run an embedder, beside PyTorch of queries and OOD inputs, and float64."""
    known_ones, foreign = (outputs(run, batches) for batches in (case.queries, case.ood))
    row: dict[str, Any] = {"encoder": case.name, "what": what}
    row["mb"] = None if path is None else path.stat().st_size / 2**20
    first = case.queries[0]
    row |= {f"ms_{n}": milliseconds(run, first[:n]) for n in (1, 32)}
    for name in ("mean", *NUMBERS):
        found, expected = known_ones[name], truth[0][name]
        gap = (found - expected).abs().max() / expected.abs().max()
        row[f"error_{name}"] = float(gap)
        exact = truth[2][name]
        row[f"rounding_{name}"] = float((found - exact).abs().max() / exact.abs().max())
    cosine = F.cosine_similarity(known_ones["mean"], truth[0]["mean"]).min()
    row["least_cosine"] = float(cosine)
    for name in NUMBERS:
        both = [
            torch.cat([each[name] for each in pair]) for pair in ((known_ones, foreign), truth[:2])
        ]
        row[f"spearman_{name}"] = float(spearmanr(*both).statistic)
        row[f"auroc_{name}"] = auroc(known_ones[name], foreign[name])
    print(row, flush=True)
    return row


def rows_of(case: Case) -> list[dict[str, Any]]:
    """PyTorch, ONNX, and both kinds of int8."""
    plain = in_torch(case)
    truth = [outputs(plain, batches) for batches in (case.queries, case.ood)]
    truth.append(outputs(in_float64(case), case.queries))
    rows = [row_of(case, "PyTorch", plain, None, truth)]
    with tempfile.TemporaryDirectory() as folder:
        example = case.queries[0][:2]
        graph = case.embedder.export(Path(folder) / "embedder.onnx", example=example)
        files = {"ONNX": graph.path}
        files["ONNX, int8 body"] = quantised(graph.path, body_only=True)
        files["ONNX, int8"] = quantised(graph.path, body_only=False)
        for what, path in files.items():
            rows.append(row_of(case, what, in_onnx(case, path), path, truth))
        torch_file = case.embedder.export(Path(folder) / "e.pt2", "torch", example=example).path
        program = torch.export.load(torch_file).module()

        def run(x: Any) -> dict[str, Tensor]:
            with torch.no_grad():
                return dict(zip(graph.outputs, program(*case.tensors(x).values()), strict=True))

        rows.append(row_of(case, "torch.export", run, torch_file, truth))
    return [{**row, "opset": graph.opset} for row in rows]


def run(options: Namespace) -> None:
    """Both encoders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [row for case in (texts(), images(options.data)) for row in rows_of(case)]
    print(write_record("export", {"rows": rows}, folder_of(options)).name)
