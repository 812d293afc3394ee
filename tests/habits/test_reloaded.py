"""Objects from before their module was loaded again, as ``%autoreload`` does, are called that."""

from __future__ import annotations

import pytest

from laplace_metric import Guard, LaplaceEmbedder, LaplaceEnsemble
from laplace_metric.calibration import Rule
from laplace_metric.errors import InputError


def from_before(kind):
    """Return an object of a class that had the name of ``kind`` before its module was reloaded."""
    return type(kind.__name__, (), {"__module__": kind.__module__})()


def test_objects_of_a_class_from_before_a_reload_are_called_that(points, index):
    x, y = points
    old = from_before(LaplaceEmbedder)
    of_it = type("Own", (type(old),), {})()
    for call in (
        lambda: Guard(x, y, model=of_it, trained_on_items=False),
        lambda: Guard(x, y, model=old, trained_on_items=False),
        lambda: LaplaceEmbedder(old),
        lambda: LaplaceEnsemble([old, old]),
        lambda: index.ask(x[:3], from_before(Rule)),
    ):
        with pytest.raises(InputError, match="was reloaded.*autoreload.*make it again"):
            call()
    with pytest.raises(InputError, match="model is a dict"):
        LaplaceEmbedder({})
