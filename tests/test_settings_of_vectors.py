"""The same vectors are compared in the same way, whichever way they come in."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.cli import main
from laplace_metric.laplace._settings_of_vectors import settings_of_vectors
from laplace_metric.search.estimators import LaplaceMetricTransformer, MatchClassifier

X, Y = load_digits(return_X_y=True)
X, Y = X[:300].astype(np.float32), Y[:300]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def of_fit_command(x, y, folder, **given):
    np.savez(folder / "vectors.npz", embeddings=x, labels=y)
    options = [f"--{name}={value}" for name, value in given.items()]
    arguments = [str(folder / "vectors.npz"), "--output", str(folder / "posterior"), *options]
    assert main(["fit", *arguments]) == 0
    return LaplaceEmbedder.load(folder / "posterior").settings


WAYS = {
    "Guard": lambda x, y, _, **given: Guard(x, y, precision=0.5, **given).embedder.settings,
    "from_embeddings": lambda x, y, _, **given: (
        LaplaceEmbedder.from_embeddings(x, y, **given).settings
    ),
    "transformer": lambda x, y, _, **given: (
        LaplaceMetricTransformer(**given)._fit_posterior(x, torch.from_numpy(y)).settings
    ),
    "classifier": lambda x, y, _, **given: (
        MatchClassifier(**given)._fit_posterior(x, torch.from_numpy(y)).settings
    ),
    "fit": of_fit_command,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("vectors", "given", "expected"),
    [
        (X, {}, ("euclidean", "positives")),
        (unit(X), {}, ("arccos", "fixed")),
        (np.concatenate([unit(X[:-1]), X[-1:]]), {}, ("euclidean", "positives")),
        (X, {"distance": "arccos"}, ("arccos", "fixed")),
        (unit(X), {"distance": "euclidean"}, ("euclidean", "positives")),
        (X, {"hessian": "full"}, ("euclidean", "full")),
    ],
)
def test_each_way_in_chooses_alike(way, vectors, given, expected, tmp_path):
    settings = WAYS[way](vectors, Y, tmp_path, **given)
    assert (settings.distance, settings.hessian) == expected


def test_a_digit_of_thrice_the_length_is_the_same_to_guard_and_index():
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    guard = Guard(x[:900], y[:900], precision=0.9)
    index = LaplaceEmbedder.from_embeddings(x[:900], y[:900]).cross_index(
        x[:900], y[:900], progress=False
    )
    asked = np.concatenate([x[900:930], 3 * x[900:930]])
    ours, theirs = guard.ask(asked), index.ask(asked, guard.rule)
    assert ours.label.tolist() == theirs.label.tolist()
    assert (ours.reason[30:] == "unfamiliar").all()
    assert not (ours.reason[:30] == "unfamiliar").all()


def test_what_was_chosen_is_shown():
    assert "distance='euclidean', hessian='positives'" in repr(Guard(X, Y, precision=0.5))
    assert "distance='euclidean', hessian='positives'" in repr(
        LaplaceEmbedder.from_embeddings(X, Y)
    )


def test_what_is_asked_for_stays():
    given = {"distance": "arccos", "hessian": "full", "structure": "diag"}
    assert settings_of_vectors(given, unit=False) == given
