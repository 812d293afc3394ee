"""Labels that differ from those of the items by a blank, by case or by the form of a character."""

import warnings

import numpy as np
import pytest

from laplace_metric import Guard
from laplace_metric.errors import LaplaceMetricWarning

CENTRES = np.random.default_rng(0).normal(size=(6, 8))
NAMES = np.array(["Shirt", "T-shirt", "Stra\u00dfe", "caf\u00e9", "Dress", "Bag"])


def draw(n, seed, names=NAMES):
    g = np.random.default_rng(seed)
    y = g.integers(0, 6, n)
    return (CENTRES[y] + 0.4 * g.normal(size=(n, 8))).astype(np.float32), names[y].tolist()


def guarded(names):
    return Guard(*draw(300, 1), held_out=draw(400, 2, names), precision=0.5)


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (0, "Shirt "),
        (0, "\u00a0Shirt"),
        (0, "shirt"),
        (1, "T-Shirt"),
        (1, "t - shirt"),
        (2, "STRASSE"),
        (3, "cafe\u0301"),
    ],
)
def test_held_out_labels_that_are_written_otherwise_are_named(place, other):
    names = NAMES.astype(object)
    names[place] = other
    with pytest.warns(LaplaceMetricWarning) as seen:
        guarded(names)
    told = [str(w.message) for w in seen if "labels: " in str(w.message)]
    assert len(told) == 1
    count = draw(400, 2, names)[1].count(other)
    assert f"{count} of 400 are {other!r} where items have {NAMES[place].item()!r}:" in told[0]
    assert "They count as queries without a match" in told[0]


def test_other_labels_are_not_told():
    names = NAMES.astype(object)
    names[5] = "Sandal"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard = guarded(names)
        guard.add(*draw(5, 3))
        x, _ = draw(300, 1)
        Guard(x, np.arange(300) % 3, held_out=(draw(60, 2)[0], np.arange(60) % 4), precision=0.01)


def test_new_items_are_told_too():
    guard = guarded(NAMES)
    with pytest.warns(LaplaceMetricWarning, match="2 of 2.*'bag'.*'Bag'.*new"):
        guard.add(draw(2, 3)[0], ["bag", "bag"])
