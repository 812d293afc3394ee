"""The benchmark of online Laplace measures the posterior that was trained, on a tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.datasets import ImageSet

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def test_both_ways_start_alike_and_the_head_alone_gives_the_same() -> None:
    from benchmarks.variants.online import on_head
    from benchmarks.variants.train import Run, train
    from laplace_metric.online import OnlineLaplace

    g = torch.Generator().manual_seed(0)
    images = {
        "train": ImageSet(
            torch.rand(12, 1, 28, 28, generator=g), torch.arange(12) % 3, "noise", ("a", "b", "c")
        )
    }
    run = Run(3, seed=1, batch_size=6, epochs=1)
    sharp = {"prior_precision": 1e30, "hessian": "positives"}

    def online(network):
        laplace = OnlineLaplace(network, **sharp)
        return lambda *args, **options: laplace.fit(*args, progress=False, **options)

    def plain(network):
        from laplace_metric.training import train_embedder

        return lambda *args, **options: train_embedder(network, *args, progress=False, **options)

    with pytest.warns(UserWarning, match="degenerate"):
        network, embedder, _ = train(run, images["train"], online)
    other, *_ = train(run, images["train"], plain)
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    embedder = LaplaceEmbedder(network, hessian="positives").fit(
        images["train"].loader(6), progress=False
    )
    x = images["train"].pixels()
    alone = on_head(embedder, network[-1])
    with torch.no_grad():
        assert torch.allclose(alone(network[:-1](x)).variance, embedder(x).variance)


def test_protocol_says_the_sizes() -> None:
    from benchmarks.variants.online import protocol

    text = protocol(20_000, 2_500, 2)
    assert "20,000 training images, 2 epochs of batches of 128" in text
    assert "314 steps" in text
    assert "{" not in text
