"""The match finder of a posterior against that of pytorch-metric-learning, and draw by draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import BatchEasyHardMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import InferenceModel, MatchFinder
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder, datasets
from laplace_metric.errors import InputError
from laplace_metric.evaluation import map_at_k, recall_at_k
from laplace_metric.match_finder import LaplaceMatchFinder
from laplace_metric.training import train_embedder

DISTANCES = {
    "cosine": (CosineSimilarity(), 0.6),
    "euclidean": (LpDistance(normalize_embeddings=False), 0.9),
}


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="module")
def embedder(digits):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    return LaplaceEmbedder(model).fit(digits.loader(256), progress=False)


@pytest.mark.parametrize("name", DISTANCES)
def test_without_spread_it_is_the_finder_of_the_library(digits, embedder, name):
    """A prior that leaves no freedom: every draw is the network itself."""
    distance, threshold = DISTANCES[name]
    rigid = LaplaceEmbedder(embedder.model, prior_precision=1e14, distance="arccos")
    rigid.fit(digits.loader(256), progress=False)
    x, y = digits.pixels(slice(0, 30)), digits.pixels(slice(30, 50))
    ours = LaplaceMatchFinder(rigid, distance, threshold, n_samples=3)
    theirs = MatchFinder(distance, threshold)
    a, b = (rigid(of).mean for of in (x, y))
    matches = theirs.get_matching_pairs(a, b)
    assert 0 < matches.mean() < 1
    assert np.array_equal(ours.get_matching_pairs(x, y), matches)
    assert np.array_equal(ours.get_matching_pairs(x), theirs.get_matching_pairs(a))
    assert ours.get_matching_pairs(x, y, return_tuples=True) == theirs.get_matching_pairs(
        a, b, return_tuples=True
    )
    assert np.array_equal(ours.is_match(x[:20], y), theirs.is_match(a[:20], b))
    assert ours.is_match(x[:1], y[:1]) is theirs.is_match(a[:1], b[:1])


@pytest.mark.parametrize("name", DISTANCES)
def test_shares_count_draws_with_shared_weights(digits, embedder, name):
    distance, threshold = DISTANCES[name]
    x, y = digits.pixels(slice(0, 9)), digits.pixels(slice(9, 18))
    finder = LaplaceMatchFinder(embedder, distance, threshold, n_samples=25, seed=3)
    embed = embedder.draw(25, torch.Generator().manual_seed(3))
    with torch.no_grad():
        a, b = embed(x), embed(y)
    each = [
        MatchFinder(distance, threshold).get_matching_pairs(*pair)
        for pair in zip(a, b, strict=True)
    ]
    shares = finder.match_shares(x, y)
    assert np.allclose(shares, np.mean(each, 0))
    assert ((shares > 0) & (shares < 1)).any()
    assert np.array_equal(finder.match_shares(x, y), shares)  # a seed: the same weights
    finder.probability = 0.9
    assert np.array_equal(finder.get_matching_pairs(x, y), shares >= 0.9)
    assert np.array_equal(finder.is_match(x, y), shares.diagonal() >= 0.9)
    stricter = finder.match_shares(x, y, threshold + (0.1 if distance.is_inverted else -0.1))
    assert (stricter <= shares).all()
    assert (stricter < shares).any()


def test_in_the_inference_model_of_the_library(digits, embedder):
    finder = LaplaceMatchFinder(embedder, CosineSimilarity(), 0.6, n_samples=10)
    model = InferenceModel(
        nn.Identity(), match_finder=finder, normalize_embeddings=False, data_device="cpu"
    )
    x, y = digits.pixels(slice(0, 5)), digits.pixels(slice(5, 12))
    assert np.array_equal(model.get_matches(x, y), finder.get_matching_pairs(x, y))
    assert model.is_match(x[:1], x[:1]) is True


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("embedder is a Linear", {"embedder": nn.Linear(2, 2)}),
        ("distance is a str", {"distance": "cosine"}),
        ("threshold=nan", {"threshold": float("nan")}),
        ("probability=1.0", {"probability": 1.0}),
        ("n_samples=0", {"n_samples": 0}),
        ("seed", {"seed": -1}),
    ],
)
def test_what_it_refuses(embedder, message, change):
    settings = {"embedder": embedder, "distance": CosineSimilarity(), "threshold": 0.5, **change}
    with pytest.raises(InputError, match=message):
        LaplaceMatchFinder(**settings)


def test_a_threshold_is_needed_and_pairs_are_of_equal_length(digits, embedder):
    finder, x = LaplaceMatchFinder(embedder, CosineSimilarity(), n_samples=2), digits.pixels()
    with pytest.raises(InputError, match="threshold is None"):
        finder.get_matching_pairs(x[:2])
    assert finder.get_matching_pairs(x[:2], threshold=-1.0).all()
    with pytest.raises(InputError, match="x has 2.*y has 3"):
        finder.is_match(x[:2], x[:3], 0.5)


def test_a_miner_and_a_sampler_train_and_its_calculator_agrees(digits):
    """Retrieval after a training by their parts, measured by theirs and by ours."""
    pytest.importorskip("faiss", reason="AccuracyCalculator needs faiss")
    torch.manual_seed(0)
    x, y = digits.pixels(slice(0, 300)), digits.labels[:300]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    sampler = MPerClassSampler(y, m=6, batch_size=60, length_before_new_iter=300)
    loader = DataLoader(TensorDataset(x, y), batch_size=60, sampler=sampler)
    losses = train_embedder(model, loader, ContrastiveLoss(), epochs=3, miner=BatchEasyHardMiner())
    assert losses[-1] < losses[0]
    points, labels = model(digits.pixels(slice(600, 900))).detach(), digits.labels[600:900]
    names, k = ("precision_at_1", "mean_average_precision"), len(points) - 1  # all others
    calculator = AccuracyCalculator(include=names, k=k, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(points, labels)
    assert recall_at_k(points, labels, 1).value == pytest.approx(theirs["precision_at_1"])
    # FAISS compares in float32, which swaps a pair of items that are nearly equally far
    assert map_at_k(points, labels, k).value == pytest.approx(
        theirs["mean_average_precision"], abs=1e-4
    )
    assert theirs["precision_at_1"] > 0.8
