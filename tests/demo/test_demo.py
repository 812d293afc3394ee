"""What the demo trains on and compares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli.demo import RECIPES
from laplace_metric.cli.demo._data import BalancedBatches, load_data, subsample
from laplace_metric.cli.demo._experiment import (
    fit_methods,
    run_experiment,
    small_network,
    train_network,
)
from laplace_metric.datasets import load
from laplace_metric.evaluation import recall_at_k


@pytest.fixture(scope="module")
def sets():
    return load_data(RECIPES["digits"])


def rows(images):
    return {tuple(row) for row in images.images.flatten(1).tolist()}


def test_the_sets_share_no_image_and_no_class_where_they_must_not(sets):
    assert set(sets.train.labels.tolist()) == set(sets.seen.labels.tolist()) == set(range(7))
    assert set(sets.unseen.labels.tolist()) == {7, 8, 9}
    assert not rows(sets.train) & rows(sets.seen)
    assert len(sets.train) == 910
    assert list(sets.ood) == ["patches of photographs"]
    for images in (sets.seen, sets.unseen, *sets.ood.values()):
        assert 100 <= len(images) <= 500
        assert 0 <= float(images.pixels().min()) < float(images.pixels().max()) <= 1


def test_subsampling_keeps_proportions_or_whole_classes():
    digits = load("digits")
    few = subsample(digits, 200)
    assert len(few) == 200
    assert few.labels.bincount(minlength=10).min() >= 10
    whole = subsample(digits, 30)
    for label in whole.labels.unique():
        assert int((whole.labels == label).sum()) == int((digits.labels == label).sum())
    assert subsample(digits, 10**6) is digits


def test_batches_are_balanced_and_reproducible(sets):
    def batches(seed):
        return list(BalancedBatches(sets.train, 20, 4, torch.Generator().manual_seed(seed)))

    one, same, other = batches(0), batches(0), batches(1)
    assert len(one) == -(-910 // 20)
    for x, y in one:
        assert x.shape == (20, 1, 8, 8)
        assert y.unique(return_counts=True)[1].tolist() == [5] * 4
    assert torch.equal(torch.cat([y for _, y in one]), torch.cat([y for _, y in same]))
    assert not torch.equal(torch.cat([y for _, y in one]), torch.cat([y for _, y in other]))
    pixels = {
        tuple(image.tolist()): int(label)
        for x, y in one
        for image, label in zip(x.flatten(1), y, strict=True)
    }
    truth = {
        tuple(image.tolist()): int(label)
        for image, label in zip(sets.train.images.flatten(1), sets.train.labels, strict=True)
    }
    assert pixels.items() <= truth.items()


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_networks_end_in_a_linear_layer_and_have_dropout(channels, side):
    model = small_network(channels, side)
    assert model(torch.rand(3, channels, side, side)).shape == (3, 16)
    assert isinstance(model[-1], torch.nn.Linear)
    assert any(isinstance(layer, torch.nn.Dropout) for layer in model)


def test_training_teaches_and_all_methods_share_the_network(sets):
    recipe = replace(RECIPES["digits"], epochs=5)
    model, losses = train_network(recipe, sets, seed=0)
    assert losses[-1] < 0.8 * losses[0]
    methods = fit_methods(model, sets, seed=0)
    assert list(methods) == ["Deterministic", "MC dropout", "Laplace"]
    assert all(method.model is model for method in methods.values())
    x, y = sets.seen.pixels(), sets.seen.labels
    plain, laplace = methods["Deterministic"](x), methods["Laplace"](x)
    torch.testing.assert_close(plain.mean, laplace.mean)
    assert recall_at_k(plain.mean, y).value > 0.9
    assert isinstance(methods["Laplace"], LaplaceEmbedder)
    assert methods["Laplace"].settings.prior_precision != 1.0


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(sets):
    recipe = replace(RECIPES["digits"], epochs=1, n_train=60, n_queries=40, n_seeds=1)
    few = load_data(recipe)

    def uncertainties(seed):
        results = run_experiment(recipe, few, seed=seed).results("seen")
        return torch.stack([runs[0].queries.uncertainty for runs in results.values()])

    state = torch.get_rng_state()
    first = uncertainties(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(first, uncertainties(1))
    assert not (first == uncertainties(2)).any()
