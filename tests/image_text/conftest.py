"""A small problem whose truth is known: directions, and texts that name one or several of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.models import Precomputed

CLASSES, PER_CLASS = 6, 10


@pytest.fixture(autouse=True)
def _untouched_global_state():
    """No test may change what others draw."""
    before = torch.get_rng_state()
    yield
    assert bool((torch.get_rng_state() == before).all())


def features(n_per_class: int = PER_CLASS, seed: int = 0) -> Tensor:
    """Images [N, 12] around class centres; class ``i % CLASSES``."""
    centres = torch.randn(CLASSES, 12, generator=torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES * n_per_class) % CLASSES
    return 2 * centres[labels] + torch.randn(len(labels), 12, generator=g)


def make_pairs(seed: int = 0) -> ImageTextPairs:
    """Eight texts: one for each of six classes, one for the first three, one for the others."""
    images = features(seed=seed)
    texts = torch.randn(CLASSES + 2, 7, generator=torch.Generator().manual_seed(6))
    label = torch.arange(len(images)) % CLASSES
    rows = torch.arange(len(images))
    links = [torch.stack([rows, label], 1), torch.stack([rows, CLASSES + (label > 2).long()], 1)]
    return ImageTextPairs(images, texts, torch.cat(links))


def make_embedder(objective="prolip", **settings) -> ImageTextEmbedder:
    return ImageTextEmbedder(Precomputed(), Precomputed(), dim=8, objective=objective, **settings)


@pytest.fixture
def pairs() -> ImageTextPairs:
    return make_pairs()


@pytest.fixture(scope="session")
def fitted() -> ImageTextEmbedder:
    how = {"batch_size": 30, "learning_rate": 0.02, "progress": False, "seed": 0}
    return make_embedder().fit(make_pairs(), epochs=20, **how)


def state(embedder: ImageTextEmbedder) -> dict[str, Tensor]:
    module: nn.Module = embedder.fitted_.heads
    return module.state_dict()


def random_embedding(n: int, d: int, seed: int, spread: float = 1.0) -> Embedding:
    """Unit means and variances of all sizes, float64."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)
    log_v = spread * torch.randn(n, d, generator=g, dtype=torch.float64) - 3
    return Embedding(Gaussian(mu, log_v.exp()))


def certain(embedding: Embedding) -> Embedding:
    """The same means without variances."""
    return Embedding(Gaussian(embedding.mean, torch.zeros_like(embedding.mean)))
