"""Inputs and batches of another form than the model's: errors that say what to write."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from laplace_metric import Guard, Index, LaplaceEmbedder
from laplace_metric.errors import (
    CallError,
    DtypeError,
    EmptyLoaderError,
    HeadError,
    InputError,
    LabelError,
)
from laplace_metric.models import Pooled

X = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(300) % 4
IMAGE = Image.new("RGB", (9, 9))
IMAGES = torch.randint(256, (40, 3, 9, 9), generator=torch.Generator().manual_seed(0)).byte()
pytestmark = pytest.mark.filterwarnings("ignore:.*of the curvature was negative")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def fit(model, inputs, labels=None) -> LaplaceEmbedder:
    return LaplaceEmbedder(model).fit(inputs, labels, progress=False)


def seen(model=None) -> LaplaceEmbedder:
    return fit(network(), X, Y) if model is None else fit(model, IMAGES.float() / 255, Y[:40])


class Named(nn.Module):
    """Takes its images by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.body = convolutions()

    def forward(self, pixel_values):
        return self.body(pixel_values)


BYTES = {
    "fit": lambda: fit(convolutions(), IMAGES, Y[:40]),
    "fit, array": lambda: fit(convolutions(), IMAGES.numpy(), Y[:40]),
    "fit, loader": lambda: fit(convolutions(), [(IMAGES, Y[:40])]),
    "fit, keywords": lambda: fit(Named(), [{"pixel_values": IMAGES, "labels": Y[:40]}]),
    "fit, keywords and arrays": lambda: fit(
        Named(), [{"pixel_values": IMAGES.numpy(), "label": Y[:40].numpy()}]
    ),
    "call": lambda: seen(convolutions())(IMAGES),
    "call, array": lambda: seen(convolutions())(IMAGES.numpy()),
    "index": lambda: seen(convolutions()).index(IMAGES, progress=False),
    "uncertainties": lambda: seen(convolutions()).uncertainties([IMAGES], progress=False),
    "linear": lambda: seen()(torch.zeros(3, 8, dtype=torch.uint8)),
    "normalisation": lambda: fit(
        nn.Sequential(nn.LayerNorm(9), nn.Flatten(), nn.Linear(243, 2)), IMAGES, Y[:40]
    ),
}


@pytest.mark.parametrize("door", BYTES)
def test_images_as_they_are_read_are_cast_and_scaled_by_the_caller(door):
    with pytest.raises(DtypeError, match=r"uint8 .*torch.float32.*x\.float\(\) / 255"):
        BYTES[door]()


SIZES = {
    "linear": (nn.Linear(9, 4), X),
    "convolution of vectors": (nn.Conv2d(3, 8, 3), X),
    "convolution of other channels": (nn.Conv2d(1, 8, 3), IMAGES.float()),
    "normalisation of layers": (nn.LayerNorm(9), X),
    "normalisation of batches": (nn.BatchNorm1d(9), X),
    "normalisation of batches of images": (nn.BatchNorm2d(9), X),
}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("door", ["fit", "guard", "guard, held out"])
def test_inputs_of_another_size_than_a_layer_takes_are_told_with_their_shape(case, door):
    layer, x = SIZES[case]
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(4, 4))
    y = torch.arange(len(x)) % 4
    doors = {
        "fit": lambda: fit(model, x, y),
        "guard": lambda: Guard(x, y, model=model, trained_on_items=False),
        "guard, held out": lambda: Guard(x, y, model=model, held_out=(x, y)),
    }
    with pytest.raises(InputError, match=r"Sequential cannot.*\[\d+, .*pass inputs"):
        doors[door]()


def test_images_as_they_are_read_are_told_next_to_other_inputs():
    class Weighted(Named):
        def forward(self, pixel_values, weights):
            return self.body(pixel_values) * weights[:, None]

    batch = {"pixel_values": IMAGES, "weights": torch.ones(40), "labels": Y[:40]}
    with pytest.raises(DtypeError, match=r"uint8 .*x\.float\(\) / 255"):
        fit(Weighted(), [batch])


def test_a_model_that_takes_bytes_gets_them():
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = convolutions()

        def forward(self, x):
            return self.body(x.float() / 255)

    expected = seen(convolutions())(IMAGES.float() / 255).mean
    torch.testing.assert_close(fit(Scales(), IMAGES, Y[:40])(IMAGES).mean, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_other_whole_numbers_are_cast_by_the_caller(dtype):
    with pytest.raises(DtypeError, match=r"float\(\)"):
        seen()(torch.ones(3, 8, dtype=dtype))
    with pytest.raises(DtypeError, match=r"int64 .*float\(\)"):
        seen()([[1, 2, 3, 4, 5, 6, 7, 8]])


class Items(Dataset):
    """Items of any form."""

    def __init__(self, item) -> None:
        self.item = item

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i):
        if i >= 60:
            raise IndexError(i)
        return self.item(i)


def triples(i):
    return X[i], int(Y[i]), i


THREE = [(X[i : i + 50], Y[i : i + 50], torch.arange(50)) for i in range(0, 300, 50)]
FORMS = {
    "three": (THREE, r"batch 0 is a tuple \(\[50, 8\], \[50\], \[50\]\).*x, y, \*_ in loader"),
    "three, a loader": (DataLoader(Items(triples), 20), r"a list \(.*x, y, \*_ in loader"),
    "three, a data set": (Items(triples), r"x, y, \*_ in loader"),
    "four": ([(X, Y, Y, Y)], r"\(\[300, 8\], \[300\], \[300\], \[300\]\).*b\[:-1\], b\[-1\]"),
    "one": ([(X,)], r"a tuple \(\[300, 8\]\), so its labels are missing"),
    "none": ([X[:50], X[50:]], r"a tensor \[50, 8\], so its labels are missing"),
    "another name": (
        [{"input": X, "target": Y}],
        r"dict \(input .*, target .*b\.pop\('target'\), \*\*b",
    ),
    "fine labels": ([{"image": X, "fine_label": Y}], r"'labels': b\.pop\('fine_label'\)"),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_another_form_are_shown_and_how_to_split_them(form):
    loader, message = FORMS[form]
    with pytest.raises(LabelError, match=message):
        fit(network(), loader)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_label_that_is_missing_is_named_by_its_row(missing):
    labels = [missing if row == 290 else int(y) for row, y in enumerate(Y)]
    numbers = np.array([np.nan if y is None else y for y in labels])
    for column in (labels, numbers, torch.from_numpy(numbers)):
        with pytest.raises(LabelError, match=r"labels.*missing.*row 290.*1 of 300"):
            fit(network(), X, column)
    with pytest.raises(LabelError, match=r"batch 1.*missing.*row 290.*1 of.*44 rows"):
        fit(network(), [(X[:256], labels[:256]), (X[256:], labels[256:])])
    names = ["" if row == 290 else f"class {y}" for row, y in enumerate(Y)]
    with pytest.raises(LabelError, match="empty text.*row 290 "):
        fit(network(), [(X[:256], names[:256]), (X[256:], names[256:])])


def test_what_the_errors_say_works():
    expected = fit(network(), X, Y)(X[:5]).variance
    batches = [{"input": X, "target": Y}]
    loaders = (
        ((x, y) for x, y, *_ in [(X, Y, Y)]),
        ({"labels": b.pop("target"), **b} for b in batches),
        [{"input": X.numpy(), "label": Y.tolist()}],
        [{"input": X.tolist(), "label": Y.numpy()}],
    )
    for loader in loaders:
        torch.testing.assert_close(fit(network(), loader)(X[:5]).variance, expected)


CALLS = {
    "three inputs": (
        lambda e: e.uncertainties(THREE, progress=False),
        r"3 inputs.*takes \(input\)",
    ),
    "a list of items": (lambda e: e([X[0], X[1]]), r"2 inputs.*torch\.stack"),
    "images": (lambda e: e([Image.new("RGB", (9, 9))]), r"\(Image\).*torch\.stack"),
    "an array in a list": (lambda e: seen(convolutions())([np.ones((9, 9))]), r"x\[None\].*stack"),
    "a loader": (lambda e: e(DataLoader(X)), r"a DataLoader: .*one batch.*uncertainties\(loader\)"),
    "batches": (lambda e: e(iter([X])), "one batch.*for each"),
    "a picture": (lambda e: seen(convolutions())(IMAGE), r"a Image \(TypeError[^\n]*pass a tensor"),
    "nothing": (lambda e: e(None), "could not be called with None"),
    "keywords": (lambda e: e({"image": X}), r"takes no 'image'.*takes \(input\).*batch\['image'\]"),
    "an index": (lambda e: e({"input": X, "idx": Y}), r"takes no 'idx'.*takes \(input\)"),
    "a line": (lambda e: e(X[:, 0]), r"\[300\].*x\[:, None\]"),
    "a number": (lambda e: e(torch.tensor(3.0)), "at least 1D"),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_are_none_of_the_model_are_named(call):
    ask, message = CALLS[call]
    with pytest.raises(InputError, match=message):
        ask(seen())


ARRAYS = {
    "count": lambda: seen().sample(20, X),
    "seed": lambda: Guard(X, Y, seed=X),
    "share": lambda: Guard(X, Y, precision=X.numpy()),
    "flag": lambda: Guard(X, Y, by_class=X),
}


@pytest.mark.parametrize("call", ARRAYS)
def test_an_array_in_the_place_of_a_number_is_told_by_its_shape(call):
    with pytest.raises(InputError, match=r"(Tensor|ndarray) \[300, 8\]: pass") as error:
        ARRAYS[call]()
    assert len(str(error.value)) < 120


def test_one_item_in_a_list_is_no_batch():
    with pytest.raises(HeadError, match=r"tensor \[4\].*x\[None\].*torch\.stack"):
        seen()([X[0]])
    with pytest.raises(LabelError, match=r"1 rows but 8 labels.*torch\.stack"):
        fit(network(), list(X), Y)


def test_a_generator_that_was_read_is_told():
    batches = ((x, y) for x, y in [(X, Y)])
    fit(network(), batches)
    with pytest.raises(EmptyLoaderError, match="generator .*once: pass a list"):
        fit(network(), batches)


def test_an_embedding_in_the_place_of_vectors_is_told():
    with pytest.raises(InputError, match=r"items is an Embedding: .*\.mean"):
        Guard(seen()(X), Y)


def test_an_embedding_is_no_array_and_names_those_that_it_has():
    embedding = seen()(X[:5])
    for read in (np.array, np.asarray, np.linalg.norm, lambda e: np.asarray(e, dtype=np.float32)):
        with pytest.raises(InputError, match=r"5 uncertain.*embedding\.mean.*\[5, 4\].*variance"):
            read(embedding)
    assert np.asarray(embedding.mean).shape == (5, 4)


def test_a_result_of_a_search_is_no_array_and_names_those_that_it_has():
    found = seen().index(X, Y, progress=False).search(X[:5], k=3)
    for read in (np.array, np.asarray):
        with pytest.raises(InputError, match=r"5 queries.*result\.labels.*result\.to_pandas"):
            read(found)
    assert np.asarray(found.labels).shape == (5, 3)


WRONG_INDICES = {
    "nothing": (lambda e: Index(), r"^Index\(\): "),
    "an embedder": (lambda e: Index(e), r"^Index\(LaplaceEmbedder\): "),
    "items": (lambda e: Index(X, Y), r"^Index\(Tensor, Tensor\): "),
    "an embedder and items": (lambda e: Index(e, X, Y), r"^Index\(LaplaceEmbedder, Tensor\): "),
    "keywords": (lambda e: Index(X, labels=Y), r"^Index\(Tensor, labels=\): "),
    "build": (lambda e: Index.build(e, X, Y), r"^Index\.build\(LaplaceEmbedder, \.\.\.\): "),
}


@pytest.mark.parametrize("call", WRONG_INDICES)
def test_an_index_that_is_made_by_hand_names_the_call_that_makes_one(call):
    make, message = WRONG_INDICES[call]
    with pytest.raises(CallError, match=rf"{message}.*embedder\.index\(items, labels\)") as error:
        make(seen())
    assert isinstance(error.value, TypeError)
    assert len(seen().index(X, Y, progress=False)) == 300  # what the error says works


def test_one_number_an_item_is_a_column():
    with pytest.raises(InputError, match=r"\[300\].*x\[:, None\]"):
        fit(nn.Linear(1, 2), X[:, 0], Y)
    assert fit(nn.Linear(1, 2), X[:, :1], Y)(X[:3, :1]).mean.shape == (3, 2)


def test_an_error_of_the_model_itself_stays_as_it_is():
    class Fails(nn.Linear):
        def forward(self, x):
            raise TypeError("my own")

    with pytest.raises(TypeError, match="^my own$"):
        fit(Fails(8, 2), X, Y)


@dataclass
class Output:
    last_hidden_state: torch.Tensor
    pooler_output: torch.Tensor


class Transformer(nn.Module):
    """Returns vectors of tokens and a pooled one, in any form."""

    def __init__(self, form) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.form = nn.Linear(8, 4), form

    def forward(self, x):
        tokens = self.layer(x)[:, None] * torch.tensor([1.0, 2.0, 4.0])[:, None]
        return self.form(tokens, tokens[:, 0])


OUTPUTS = {
    "a data class": (Output, r"Output \(last_hidden_state .*'mean'\).*'pooler_output'"),
    "a dict": (
        lambda h, p: {"last_hidden_state": h, "pooler_output": p},
        r"Pooled\(model, 'mean'\).*Pooled\(model, None, 'pooler_output'\)",
    ),
    "tokens alone": (lambda h, _: SimpleNamespace(last_hidden_state=h), r"Pooled\(model, 'mean'\)"),
    "a tuple": (lambda h, p: (h, p), r"Pooled\(model, pooling, field\)"),
    "a list": (lambda h, p: [h, p], r"Pooled\(model, pooling, field\)"),
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_outputs_of_transformers_name_their_adapter(form):
    make, message = OUTPUTS[form]
    with pytest.raises(HeadError, match=message):
        fit(Transformer(make), X, Y)
    field = 0 if form in ("a tuple", "a list") else None
    embedder = LaplaceEmbedder(Pooled(Transformer(make), "mean", field), head="append")
    embedded = embedder.fit(X, Y, progress=False)(X[:5])
    torch.testing.assert_close(embedded.mean * 0 + 1, torch.ones(5, 4))
    assert np.isfinite(embedded.epistemic.numpy()).all()
