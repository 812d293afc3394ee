"""Nested values as JSON and tensors."""

from __future__ import annotations

import json

import pytest
import torch

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.online._state import flatten, unflatten


def test_round_trip_through_json():
    alias = torch.arange(6.0)
    tree = {
        0: {"step": torch.tensor(2.0), "moment": alias.view(2, 3).mT, "same": alias},
        "groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "off": None, "on": True}],
        "nan": float("inf"),
        "empty": [{}, (), []],
    }
    content, tensors = flatten(tree, "t")
    back = unflatten(json.loads(json.dumps(content)), tensors)
    assert set(back) == set(tree)
    assert back["groups"] == tree["groups"]
    assert isinstance(back["groups"][0]["betas"], tuple)
    assert back["nan"] == float("inf")
    assert back["empty"] == tree["empty"]
    assert all(torch.equal(back[0][k], tree[0][k]) for k in tree[0])
    assert len({t.data_ptr() for t in tensors.values()}) == 3


def test_what_cannot_be_written_and_what_cannot_be_read():
    with pytest.raises(InputError, match="function cannot be written"):
        flatten({"f": len.__class__ and (lambda: None)})
    for bad in ({"tensor": "x"}, {"set": []}, {}, [1], {"dict": [[1]]}):
        with pytest.raises(FileFormatError, match="damaged"):
            unflatten(bad, {})
