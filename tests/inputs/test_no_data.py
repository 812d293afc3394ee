"""What is no data at the door: errors name the argument, what was given, and where it belongs."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, LabelError

G = np.random.default_rng(0)
Y = np.arange(80) % 2
X = (4 * np.eye(2)[Y] + G.normal(size=(80, 2))).astype(np.float32)
FAISS = SimpleNamespace(ntotal=3, search=len)
"""What tells an index of FAISS, which need not be installed."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def guard() -> Guard:
    return Guard(X, Y, precision=0.5)


WRONG = {
    "network": (
        nn.Sequential(nn.Linear(2, 2)),
        "is a Sequential, a model: pass the inputs.*model=",
    ),
    "faiss": (FAISS, r"a FAISS index: Guard\.wrap\(index, labels\)"),
    "path": (Path("photos"), "is a path.*load_folder"),
    "none": (None, "is None: pass an array"),
    "function": (len, "is a builtin.*: pass an array"),
    "embedder": (LaplaceEmbedder(nn.Linear(2, 2)), "is a LaplaceEmbedder: pass an array"),
    "images": (np.ones((80, 3, 8, 8)), r"shape \(80, 3, 8, 8\): pass \[N, .*, the embeddings"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_data_is_named_with_where_it_belongs(wrong, guard):
    given, message = WRONG[wrong]
    with pytest.raises(InputError, match=message) as error:
        Guard(given, Y)
    assert str(error.value).startswith("items ")
    doors = (guard.ask, lambda x: guard.evaluate(x, Y), guard.embedder)
    for door in doors if wrong != "none" else ():
        with pytest.raises(InputError, match=message):
            door(given)


def test_a_dict_is_asked_for_the_array_in_it():
    for kind in (dict, OrderedDict):
        with pytest.raises(
            InputError, match=r"items is a .*ict with the keys \['x'\].*items\['x'\]"
        ):
            Guard(kind(x=X), Y)
    with pytest.raises(InputError, match=r"keys \[\]: .*such as its vectors"):
        Guard({}, Y)


@pytest.mark.parametrize("labels_of", [np.asarray, list, torch.as_tensor])
def test_labels_first_are_seen_at_every_door(labels_of, guard):
    y = labels_of(Y)
    embedder = LaplaceEmbedder(nn.Linear(2, 2))
    for name, door in {
        "items": lambda: Guard(y, X),
        "queries": lambda: guard.evaluate(y, X),
        "queries ": lambda: guard.calibrate(y, X),
        "": lambda: embedder.fit(y, X, progress=False),
    }.items():
        with pytest.raises(InputError, match=rf"{name.strip()} .*\(80,\).*\(80, 2\), labels first"):
            door()


def test_labels_first_in_the_pairs_of_a_loader_are_seen(guard):
    images, y = torch.rand(80, 3, 4, 4), torch.as_tensor(Y)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    doors = (
        lambda: LaplaceEmbedder(nn.Linear(2, 2)).fit([(y, torch.as_tensor(X))], progress=False),
        lambda: LaplaceEmbedder(flat).fit([(y, images)], progress=False),
        lambda: LaplaceEmbedder(flat).fit([(y, (255 * images).byte())], progress=False),
        lambda: Guard([(y, images)], model=flat, trained_on_items=False),
        lambda: guard.evaluate([(y, torch.as_tensor(X))]),
    )
    for door in doors:
        with pytest.raises(LabelError, match=r"batch.* labels first.*yield \(inputs, labels\)"):
            door()


def test_labels_alone_are_no_vectors(guard):
    for door in (guard.calibrate, guard.evaluate, guard.ask):
        with pytest.raises(InputError, match=r"80 whole numbers.*vectors \[N, 2\] first.*labels"):
            door(Y)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["red", "round"]] * 80, r"labels holds a list.*\['red', 'round'\].*TagGuard"),
        ([["red", "round"], ["blue"]] * 40, "labels holds a list.*TagGuard"),
        ([{"round", "red"}] * 80, r"labels holds a set.*\['red', 'round'\].*TagGuard"),
        (np.eye(2)[Y], r"labels has shape \(80, 2\).*TagGuard.*argmax\(1\)"),
        (Y[:, None], r"labels has shape \(80, 1\): pass [^.]*column, labels\[:, 0\]\.$"),
        (torch.as_tensor(Y)[:, None], r"labels has shape \(80, 1\): pass [^.]*labels\[:, 0\]\.$"),
    ],
)
def test_several_labels_an_item_are_sent_to_the_guard_of_tags(labels, message, guard):
    doors = (Guard, guard.evaluate, guard.calibrate, LaplaceEmbedder(nn.Linear(2, 2)).fit)
    for door in doors:
        with pytest.raises(LabelError, match=message):
            door(X, labels)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("resnet18", r"model='resnet18' is a name: load.*torchvision\.models"),
        (FAISS, r"model is a SimpleNamespace.*Guard\.wrap"),
        (5, r"model is a int: pass a torch\.nn\.Module\.$"),
    ],
)
def test_a_model_that_is_none_is_told_what_to_load(model, message):
    for make in (LaplaceEmbedder, lambda m: Guard(X, Y, model=m)):
        with pytest.raises(InputError, match=message):
            make(model)


def test_a_list_of_one_square_image_is_a_batch_or_an_image_by_what_is_written():
    """28 rows of 28 numbers are a batch of a layer that takes 28, and one image as well."""
    x = torch.as_tensor(G.normal(size=(80, 28)), dtype=torch.float32)
    embedder = LaplaceEmbedder(nn.Linear(28, 2), head="append").fit(x, Y, progress=False)
    index = embedder.index(x, Y, progress=False)
    image = torch.as_tensor(G.normal(size=(28, 28)), dtype=torch.float32)
    told = r"queries is a list of one array of.*28, 28\).*queries\[0\]\[None\]"
    for one in (image, image.numpy(), image[None], image.expand(3, 28, 28)):
        with pytest.raises(InputError, match=told):
            index.search([one], 1)
    assert len(index.search(image, 1)) == 28
    assert len(index.search([image[:9]], 1)) == 9  # no square: a batch
    assert len(index.search([image, image], 1)) == 56


TEXTS = {
    "list": ["hello", "world"],
    "tuple": ("hello", "world"),
    "array": np.array(["hello", "world"]),
    "objects": np.array(["hello", "world"], dtype=object),
    "series": pd.Series(["hello", "world"], index=[7, 9]),
    "one": "hello",
}


@pytest.mark.parametrize("form", TEXTS)
def test_texts_in_the_place_of_vectors_are_to_be_encoded_first(form, guard):
    doors = (guard.ask, guard.index.search, lambda x: guard.evaluate(x, [0, 1]))
    for door in doors:
        with pytest.raises(
            InputError, match=r"queries: 'hello' is a text.*vectors \[N, 2\].*Encode texts first"
        ):
            door(TEXTS[form])
    with pytest.raises(InputError, match=r"items: 'hello' .*\[N, D\].*Encode.*with model="):
        Guard(["hello", "world"], [0, 1])
    with pytest.raises(InputError, match=r"embeddings: 'hello' is a text.*\[N, 2\].*Encode"):
        guard.embedder(["hello", "world"])
