"""Models whose answer depends on chance, or on other rows of a batch, are refused at the fit."""

from __future__ import annotations

import random
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baselines import MCDropout
from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.heads._repeatable import TRIES
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.scale import Plan

N = 120
Y = torch.arange(N) % 4
X = 2 * torch.eye(8)[Y] + torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
AT_RANDOM, OF_THE_BATCH = "draws at random in eval mode", "among other rows of a batch"


class Between(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.change, self.last = nn.Linear(8, 64), change, nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(torch.relu(self.first(x))))


def attention_over_the_batch(h: Tensor) -> Tensor:
    return h + (h @ h.mT / 8).softmax(1) @ h


class Noise(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + 0.05 * torch.randn_like(h)


class Depth(nn.Module):
    """Stochastic depth: a block is left out for some rows, or for all of a call."""

    def __init__(self, share: float, *, of_calls: bool) -> None:
        super().__init__()
        self.block, self.share, self.of_calls = nn.Linear(64, 64), share, of_calls

    def forward(self, h: Tensor) -> Tensor:
        there = torch.rand(1 if self.of_calls else len(h), 1) >= self.share
        return h + there * self.block(h)


def of_numpy(h: Tensor) -> Tensor:
    return h * (1 + 0.5 * (np.random.random() < 0.1))  # noqa: NPY002


def of_python(h: Tensor) -> Tensor:
    return h * (1 + 0.5 * (random.random() < 0.1))


RARE = {
    "of few rows": Depth(0.02, of_calls=False),
    "of few calls": Depth(0.1, of_calls=True),
    "of numpy": of_numpy,
    "of python": of_python,
}
CHANCE = {
    "functional dropout": lambda h: F.dropout(h, 0.5),
    "a little dropout": lambda h: F.dropout(h, 0.01),
    "noise": Noise(),
    "random rows": lambda h: h[:, torch.randperm(64)],
}
BATCH = {
    "batch statistics": nn.BatchNorm1d(64, track_running_stats=False),
    "functional statistics": lambda h: F.batch_norm(h, None, None, training=True),
    "attention over the batch": attention_over_the_batch,
    "the mean of the batch": lambda h: h - h.mean(0),
    "scaled by the largest": lambda h: h / h.max(),
    "a softmax over the batch": lambda h: h.softmax(0),
}
FINE = {
    "nothing": nn.Identity(),
    "dropout of a module": nn.Dropout(0.5),
    "batch norm": nn.BatchNorm1d(64),
    "layer norm": nn.LayerNorm(64),
    "dropout that is switched off": lambda h: F.dropout(h, 0.5, training=False),
    "in half precision inside": lambda h: h.bfloat16().float(),
}


def fit(model: nn.Module, x=X, y=Y) -> LaplaceEmbedder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LaplaceEmbedder(model).fit(x, y, progress=False)


DOORS = {
    "fit": fit,
    "cross_index": lambda model: LaplaceEmbedder(model).cross_index(X, Y, progress=False),
    "Guard": lambda model: Guard(X, Y, model=model, trained_on_items=False, precision=0.3),
    "Plan": lambda model: Plan(LaplaceEmbedder(model), X),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_that_finds_the_head_runs_a_few_rows_again(door):
    with pytest.raises(InputError, match=f"Between gives other .* {AT_RANDOM}"):
        DOORS[door](Between(CHANCE["functional dropout"]))
    with pytest.raises(InputError, match=f"{OF_THE_BATCH}.*change \\(BatchNorm1d\\).*no runnin"):
        DOORS[door](Between(BATCH["batch statistics"]))


@pytest.mark.parametrize("kind", CHANCE)
@pytest.mark.parametrize("n", [1, 2, 3, N])
def test_chance_is_noticed(kind, n):
    batches = [(X[:n], Y[:n]), (X[n:], Y[n:])]
    with pytest.raises(InputError, match=AT_RANDOM):
        fit(Between(CHANCE[kind]), [(x, y) for x, y in batches if len(x)], None)


@pytest.mark.parametrize("kind", RARE)
def test_chance_that_leaves_most_rows_or_calls_as_they_are_is_noticed(kind):
    for seed in range(3):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        with pytest.raises(InputError, match=AT_RANDOM):
            fit(Between(RARE[kind]))


def test_draws_without_an_effect_are_fitted():
    rows = []
    model = Between(lambda h: h + 0 * torch.rand_like(h))
    model.register_forward_hook(lambda _m, args, _out: rows.append(len(args[0])))
    fit(model, [(X[:80], Y[:80]), (X[80:], Y[80:])], None)
    assert sorted(rows) == [8] * (3 + TRIES) + [40, 80]


def test_a_first_batch_of_one_row_is_compared_next_to_another_row():
    batches = [(X[:1], Y[:1]), (X[1:], Y[1:])]
    for kind in ("the mean of the batch", "a softmax over the batch", "scaled by the largest"):
        with pytest.raises(InputError, match=OF_THE_BATCH):
            fit(Between(BATCH[kind]), batches, None)
    for kind in FINE:
        fit(Between(FINE[kind]), batches, None)
    fit(Between(lambda h: h if len(h) != 2 else h.view(1, 64)), batches, None)  # takes no two rows


@pytest.mark.parametrize("kind", BATCH)
@pytest.mark.parametrize("n", [5, N])
def test_rows_that_are_mixed_are_noticed(kind, n):
    with pytest.raises(InputError, match=OF_THE_BATCH):
        fit(Between(BATCH[kind]), [(X[:n], Y[:n]), (X[-40:], Y[-40:])], None)


@pytest.mark.parametrize("kind", FINE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_is_not(kind, dtype):
    model = Between(FINE[kind]).to(dtype)
    if kind.startswith("in half"):
        model.change = lambda h: h.bfloat16().to(dtype)
    fit(model.train(), X.to(dtype))
    assert model.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deep_networks_of_low_precision_are_not(dtype):
    torch.manual_seed(0)
    layers = [part for _ in range(24) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    fit(nn.Sequential(nn.Linear(8, 64), *layers, nn.Linear(64, 16)).to(dtype), X.to(dtype))


class OfTokens(nn.Module):
    """The mean of the tokens of texts, or of ids with a mask; the mask may be left out."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.last, self.masked = nn.Embedding(200, 32), nn.Linear(32, 8), masked

    def forward(self, input_ids: Tensor | list[str], attention_mask: Tensor | None = None):
        if attention_mask is None:
            tokens = [torch.tensor([ord(c) for c in text]) for text in input_ids]
            input_ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
            attention_mask = (input_ids > 0).long()
        weight = attention_mask if self.masked else torch.ones_like(attention_mask)
        total = (self.tokens(input_ids) * weight[..., None]).sum(1)
        return self.last(total / weight.sum(1, keepdim=True))


def texts() -> list[str]:
    g = torch.Generator().manual_seed(1)
    sizes = torch.randint(3, 40, (N,), generator=g).tolist()
    return ["abcd"[i % 4] * size + "xyz"[i % 3] for i, size in enumerate(sizes)]


def tokens() -> dict[str, Tensor]:
    rows = [torch.tensor([ord(c) for c in text]) for text in texts()]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


@pytest.mark.parametrize("inputs", [texts, tokens], ids=["texts", "tokens"])
def test_a_mean_over_padding_is_noticed(inputs):
    batch = inputs()
    data = [({**batch, "labels": Y}, None)] if isinstance(batch, dict) else None
    data = [{**batch, "labels": Y}] if data else [(batch, Y)]
    fit(OfTokens(masked=True), data, None)
    with pytest.raises(InputError, match=f"{OF_THE_BATCH}.*mean over padding.*mask"):
        fit(OfTokens(masked=False), data, None)


class OfOneSize(nn.Module):
    """A graph that was made for batches of 40 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.view(40, 8))


def test_a_model_of_batches_of_one_size_is_fitted():
    fit(OfOneSize(), [(X[i : i + 40], Y[i : i + 40]) for i in (0, 40, 80)], None)


def test_vectors_that_are_stored_are_not_run_again(monkeypatch):
    from laplace_metric.models import Precomputed

    forward, calls = Precomputed.forward, []
    monkeypatch.setattr(
        Precomputed, "forward", lambda self, x: calls.append(len(x)) or forward(self, x)
    )
    LaplaceEmbedder.from_embeddings(X, Y)
    assert calls == [N]


def test_few_rows_are_run_again():
    rows = []
    model = Between(nn.Identity())
    model.register_forward_hook(lambda _m, args, _out: rows.append(len(args[0])))
    fit(model, [(X[:80], Y[:80]), (X[80:], Y[80:])], None)
    assert sorted(rows) == [8, 8, 8, 40, 80]


def test_dropout_that_is_sampled_on_purpose_is_a_method_of_its_own():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    assert float(MCDropout(model, n_samples=8)(X[:3]).variance.min()) > 0
    fit(model)


def side(change) -> nn.Module:
    """Encoder of one tower, with a function inside."""
    return Between(deepcopy(change)).float().eval()


@pytest.mark.parametrize("which", ["image_encoder", "text_encoder"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (CHANCE["functional dropout"], f"Between gives other .* {AT_RANDOM}"),
        (RARE["of few rows"], f"Between gives other .* {AT_RANDOM}"),
        (BATCH["batch statistics"], f"Between .* {OF_THE_BATCH}.*change \\(BatchNorm1d\\)"),
        (BATCH["attention over the batch"], f"Between .* {OF_THE_BATCH}"),
    ],
)
def test_encoders_of_images_and_texts_are_run_again(which, change, told):
    both = {"image_encoder": side(nn.Identity()), "text_encoder": side(nn.Identity())}
    pairs = ImageTextPairs(X, X, torch.arange(N).expand(2, N).T)
    embedder = ImageTextEmbedder(**{**both, which: side(change)}, dim=4)
    with pytest.raises(InputError, match=told):
        embedder.fit(pairs, epochs=1, progress=False)
    given = ImageTextEmbedder.from_projections(
        nn.Linear(16, 4), nn.Linear(16, 4), 10.0, **{**both, which: side(change)}
    )
    with pytest.raises(InputError, match=told):
        given.fit_posterior(pairs, progress=False)


@pytest.mark.parametrize("kind", FINE)
def test_encoders_that_are_repeatable_are_fitted(kind):
    encoder = side(FINE[kind])
    embedder = ImageTextEmbedder(image_encoder=encoder, text_encoder=lambda x: encoder(x), dim=4)
    embedder.fit(ImageTextPairs(X, X, torch.arange(N).expand(2, N).T), epochs=1, progress=False)


def test_a_function_is_named_in_the_message():
    def noisy(x):
        return x + torch.randn_like(x)

    embedder = ImageTextEmbedder(image_encoder=noisy, text_encoder=noisy, dim=4)
    with pytest.raises(InputError, match="^noisy.*other embeddings"):
        embedder.fit(ImageTextPairs(X, X, torch.arange(N).expand(2, N).T), epochs=1, progress=False)
