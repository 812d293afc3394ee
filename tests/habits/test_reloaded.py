"""Objects of a class that was loaded again since, as notebooks with %autoreload have them."""

from __future__ import annotations

import pytest
import torch

from laplace_metric import Guard, LaplaceEmbedder, LaplaceEnsemble
from laplace_metric.errors import InputError
from laplace_metric.scale import Plan

X, Y = torch.randn(20, 8), torch.arange(20) % 4
NAMES = {"__module__": LaplaceEmbedder.__module__, "__qualname__": "LaplaceEmbedder"}
BEFORE = type("LaplaceEmbedder", (), NAMES)
"""A class of the name and the module of ``LaplaceEmbedder``."""
DOORS = {
    "model": lambda old: Guard(X, Y, model=old, trained_on_items=False),
    "members\\[0\\]": lambda old: LaplaceEnsemble([old, old]),
    "embedder": lambda old: Plan(old, X),
}


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("kind", [BEFORE, type("OfIt", (BEFORE,), {})], ids=["it", "a subclass"])
def test_an_object_of_a_class_that_was_loaded_again_is_told(name, kind):
    told = f"{name} is a LaplaceEmbedder of before its module .* was loaded again .*: build it aga"
    with pytest.raises(InputError, match=told):
        DOORS[name](kind())


@pytest.mark.parametrize("name", DOORS)
def test_another_class_of_the_same_name_is_not(name):
    other = type("LaplaceEmbedder", (), {"__module__": "mine"})()
    with pytest.raises(InputError, match=f"{name} is a LaplaceEmbedder: pass "):
        DOORS[name](other)
