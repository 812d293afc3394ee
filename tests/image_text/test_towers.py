"""Encoders with two tokens: shapes, what is hidden stays hidden, seeds, resuming, files, errors."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import Tensor, nn

from laplace_metric.errors import (
    FileFormatError,
    InputError,
    MissingPackageError,
    UnknownNameError,
)
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    ImageTransformer,
    ProLIP,
    TextTransformer,
)
from laplace_metric.image_text._heads import FIRST_TRACE, TokenHead
from laplace_metric.image_text._towers import check_images
from laplace_metric.image_text._transformers import drop_words, transformer
from laplace_metric.models import Precomputed
from tests.image_text.conftest import state

pytest.importorskip("tokenizers", reason="needs the package tokenizers")

COLOURS = ("red", "green", "blue", "grey")
TEXTS = [*COLOURS, "a red square", "a blue square", "something very big and red", "a dot"]
SMALL = {"width": 16, "depth": 2, "heads": 2}
FROM_NOTHING = ProLIP(first_b=-2.0)
QUICK = {"batch_size": 16, "learning_rate": 0.005, "progress": False}


def image_encoder(**changes) -> ImageTransformer:
    return ImageTransformer(
        16, 4, mean=(0.5, 0.25, 0.5), std=(0.3, 0.15, 0.3), **{**SMALL, "generator": 0, **changes}
    )


def text_encoder(**changes) -> TextTransformer:
    return TextTransformer.of(TEXTS, 60, **{**SMALL, "generator": 1, **changes})


def rand(n: int) -> Tensor:
    """Images [n, 3, 16, 16] in [0, 1]."""
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(n))


def coloured() -> ImageTextPairs:
    """Images of four colours, each with its colour and a sentence."""
    images = rand(32) / 2
    for channel in range(3):
        images[channel::4, channel] += 0.5
    captions = [[colour, f"a {colour} square"] for colour in COLOURS] * 8
    return ImageTextPairs.of(images, captions)


def make(objective: str | ProLIP = FROM_NOTHING, **changes) -> ImageTextEmbedder:
    how = {"dim": 8, "train_encoders": True, "tokens": "uncertainty", "encoder_rate": 1.0}
    encoders = image_encoder(dropout=0.1), text_encoder(dropout=0.1)
    return ImageTextEmbedder(*encoders, objective=objective, **{**how, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_tokens_come_out_in_the_type_of_the_weights(dtype):
    images = rand(3)
    out = image_encoder().to(dtype)(images)
    assert (out.shape, out.dtype) == ((3, 2, 16), dtype)
    out = text_encoder().to(dtype)(TEXTS)
    assert (out.shape, out.dtype) == ((len(TEXTS), 2, 16), dtype)


def test_bytes_are_images_too():
    encoder, bytes_ = image_encoder(), (255 * rand(2)).byte()
    torch.testing.assert_close(encoder(bytes_), encoder(bytes_ / 255), rtol=0, atol=0)


def test_layers_are_drawn_apart():
    with torch.random.fork_rng():
        first, second = transformer(8, 2, 2).layers
    for name, weight in first.named_parameters():
        if weight.ndim == 2:
            assert not bool((weight == second.get_parameter(name)).any())


def test_padding_hides_what_stands_there():
    """Also what a longer neighbour brings along."""
    encoder = text_encoder().double().eval()
    numbers, padding = encoder.pieces(["red", "a very big blue square"])
    other = numbers.clone()
    other[0, 1:] = 5
    assert not bool((numbers == other).all())
    with torch.no_grad():
        a, b = encoder.encode(numbers, padding), encoder.encode(other, padding)
        seen = encoder.encode(other, padding.logical_and(torch.tensor([[False], [True]])))
        alone = encoder(["red"])
    assert bool((a == b).all())
    assert not bool((a[0] == seen[0]).any())
    torch.testing.assert_close(a[:1], alone)


def test_dropped_patches_are_not_seen(monkeypatch):
    kept = torch.tensor([[0, 3, 5, 15], [1, 2, 3, 4]])
    monkeypatch.setattr("laplace_metric.image_text._towers.kept_places", lambda *_: kept)
    encoder = image_encoder().double()
    images = rand(2).double()
    hidden, shown = images.clone(), images.clone()
    for row, places in enumerate(kept.tolist()):
        for place in range(16):
            y, x = 4 * (place // 4), 4 * (place % 4)
            changed = shown if place in places else hidden
            changed[row, :, y : y + 4, x : x + 4] = 0.25
    before = encoder.masked(images, 0.75)
    assert bool((encoder.masked(hidden, 0.75) == before).all())
    assert not bool((encoder.masked(shown, 0.75) == before).any())


def test_kept_patches_keep_their_positions(monkeypatch):
    """With all patches kept, in another order: nothing changes but rounding."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).expand(2, -1)
    monkeypatch.setattr("laplace_metric.image_text._towers.kept_places", lambda *_: order)
    encoder = image_encoder().double()
    images = rand(2).double()
    torch.testing.assert_close(encoder.masked(images, 0.5), encoder(images))


def test_masks_hide_their_share_and_differ_between_images():
    from laplace_metric.image_text._transformers import kept_places

    with torch.random.fork_rng():
        kept = kept_places(50, 16, 0.75, torch.device("cpu"))
    assert kept.shape == (50, 4)
    assert bool((kept.diff(dim=1) > 0).all())
    assert 0 < float(kept.double().mean()) - 6.5 < 2
    assert len({tuple(row) for row in kept.tolist()}) > 40


def test_words_are_dropped_in_order_and_one_stays():
    text = "one two three four five six seven eight"
    left = drop_words([text] * 20 + ["alone"], 0.75, generator=3)
    assert left == drop_words([text] * 20 + ["alone"], 0.75, generator=3)
    assert left[-1] == "alone"
    for one in left[:-1]:
        words = one.split()
        assert len(words) == 2
        assert words == [w for w in text.split() if w in words]
    assert len(set(left)) > 10


def test_variances_come_from_their_own_token():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        features, head = torch.randn(4, 2, 6), TokenHead(6, 3)
        before = head(features)
        for token, changed in enumerate((("inputs", "raw"), ("log_v",))):
            other = features.clone()
            other[:, token] = torch.randn(4, 6)
            after = head(other)
            for name in ("inputs", "raw", "log_v"):
                same = getattr(before, name) == getattr(after, name)
                assert bool(same.all()) is (name not in changed)


def test_the_first_trace_is_a_setting():
    with torch.random.fork_rng():
        features = torch.randn(200, 2, 32)
        for trace in (FIRST_TRACE, 0.02):
            measured = TokenHead(32, 64, first_trace=trace)(features).trace.detach().mean()
            assert float(measured) == pytest.approx(trace, rel=0.2)


def test_they_learn_from_nothing_and_a_seed_decides():
    pairs = coloured()
    fits = [make().fit(pairs, epochs=15, generator=s, **QUICK) for s in (1, 1, 2)]
    first, second, third = ({**state(f), **f.towers.modules.state_dict()} for f in fits)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    assert not all(bool((first[k] == third[k]).all()) for k in first)
    image, text = fits[0].embed_image(pairs.images), fits[0].embed_text(COLOURS)
    right = fits[0].similarity(image, text).argmax(1) == torch.arange(32) % 4
    assert bool(right.all())
    assert bool((image.epistemic > 0).all())
    assert float(image.uncertainty.std()) > 0


def test_encoders_have_a_rate_of_their_own():
    moved = []
    for rate in (1.0, 1e-6):
        embedder = make(encoder_rate=rate)
        before = embedder.towers.image.positions.detach().clone()
        embedder.fit(coloured(), epochs=1, generator=0, **{**QUICK, "weight_decay": 0.0})
        moved.append(float((embedder.towers.image.positions.detach() - before).norm()))
    assert moved[1] < 1e-4 * moved[0]


class Stopped(Exception):
    """Thrown by the loss."""


class Stops(ProLIP):
    """At one call."""

    def __init__(self, at: int) -> None:
        super().__init__(masked=0.1, first_b=-2.0)
        self._at, self._calls = at, 0

    def forward(self, *args: object) -> torch.Tensor:
        if self._calls == self._at:
            raise Stopped
        self._calls += 1
        return super().forward(*args)


@pytest.mark.parametrize("at", [2, 4, 6])
def test_an_interrupted_fit_goes_on_with_the_encoders_as_they_were(at, tmp_path):
    """Four steps an epoch; masks and dropout are drawn as they would have been."""
    how = {"epochs": 2, "generator": 4, **QUICK}
    whole = make(Stops(-1)).fit(coloured(), checkpoint=tmp_path / "whole", **how)
    with pytest.raises(Stopped):
        make(Stops(at)).fit(coloured(), checkpoint=tmp_path / "broken", **how)
    resumed = make(Stops(-1)).fit(coloured(), checkpoint=tmp_path / "broken", **how)
    assert whole.fitted_.losses == resumed.fitted_.losses
    for part in (lambda e: e.fitted_.heads, lambda e: e.towers.modules):
        first, second = part(whole).state_dict(), part(resumed).state_dict()
        assert all(bool((first[k] == second[k]).all()) for k in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_encoders_are_saved_with_the_fit(dtype, tmp_path):
    pairs, embedder = coloured(), make()
    for encoder in (embedder.towers.image, embedder.towers.text):
        encoder.to(dtype)
    embedder.fit(pairs, epochs=1, generator=0, **QUICK).save(tmp_path)
    loaded = ImageTextEmbedder.load(tmp_path)
    assert loaded.settings == embedder.settings
    for embed in (lambda e: e.embed_image(pairs.images), lambda e: e.embed_text(TEXTS)):
        a, b = embed(embedder), embed(loaded)
        for name in ("mean", "variance", "epistemic"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0)
    given = image_encoder()
    assert ImageTextEmbedder.load(tmp_path, given).towers.image is given


class Mine(ImageTransformer):
    """Of a user."""


def test_encoders_of_a_user_are_not_saved_and_asked_for(tmp_path):
    embedder = make()
    embedder.towers = type(embedder.towers)(Mine(16, 4, **SMALL), embedder.towers.text)
    embedder.fit(coloured(), epochs=1, generator=0, **QUICK).save(tmp_path)
    with pytest.raises(InputError, match="the image encoder was one of your own: pass image_enc"):
        ImageTextEmbedder.load(tmp_path)
    assert ImageTextEmbedder.load(tmp_path, Mine(16, 4, **SMALL))


def test_damaged_encoders_are_named(tmp_path, monkeypatch):
    make().fit(coloured(), epochs=1, generator=0, **QUICK).save(tmp_path)
    whole = ImageTransformer.__init__

    def other(self, *args, **kwargs):
        whole(self, *args, **{**kwargs, "width": 8})

    monkeypatch.setattr(ImageTransformer, "__init__", other)
    with pytest.raises(FileFormatError, match="damaged"):
        ImageTextEmbedder.load(tmp_path)


def test_a_vocabulary_is_the_same_twice():
    settings = [text_encoder().settings["vocabulary"] for _ in range(2)]
    assert settings[0] == settings[1]


def test_long_texts_are_cut():
    encoder = text_encoder(length=3)
    with torch.no_grad():
        torch.testing.assert_close(encoder(["a red square dot"]), encoder(["a red square"]))


def test_bad_images_and_texts_are_named():
    encoder = image_encoder()
    with pytest.raises(InputError, match=r"shape \[2, 3, 32, 32\]: pass \[B, 3, 16, 16\]"):
        encoder(torch.zeros(2, 3, 32, 32))
    with pytest.raises(InputError, match=r"images lie in \[-"):
        check_images(rand(2) - 0.5, 16)
    with pytest.raises(InputError, match=r"images lie in \[nan"):
        check_images(torch.full((1, 3, 16, 16), torch.nan), 16)
    with pytest.raises(InputError, match=r"must be a floating tensor .*torch.int64"):
        encoder(torch.ones(2, 3, 16, 16, dtype=torch.int64))
    texts = text_encoder()
    for bad in (["red", " "], ["red", ""], ["red", None]):
        with pytest.raises(InputError, match=r"texts\[1\] is .*not empty"):
            texts(bad)
    with pytest.raises(InputError, match=r"texts\[0\] = .* has no word"):
        texts(["\u0007"])
    with pytest.raises(InputError, match="texts is a str: pass a list"):
        texts("red")
    with pytest.raises(InputError, match="share"):
        encoder.masked(rand(1), 1.0)


def test_bad_sizes_are_named():
    for kind, match in (
        ({"size": 15}, "size=15 is no multiple of patch=4"),
        ({"width": 15}, "width=15 is no multiple of heads=4"),
        ({"depth": 0}, "depth=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ):
        with pytest.raises(InputError, match=match):
            ImageTransformer(**{"size": 16, "patch": 4, **kind})
    with pytest.raises(InputError, match="vocabulary is no JSON of tokenizers"):
        TextTransformer("{}")
    with pytest.raises(InputError, match="size=2"):
        TextTransformer.of(TEXTS, 2)


def test_the_missing_package_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tokenizers" else found(name)
    )
    with pytest.raises(MissingPackageError, match="TextTransformer needs the package 'tokenizers'"):
        TextTransformer.of(TEXTS)
    assert "tokenizers" in sys.modules  # importable, but for the patch


def test_tokens_must_be_what_the_encoders_give():
    with pytest.raises(UnknownNameError, match="tokens='unc'"):
        make(tokens="unc")
    with pytest.raises(InputError, match=r"of images gives \[CLS\] and \[UNC\] an input.*'uncer"):
        make(tokens="head").fit(coloured(), epochs=1, generator=0, **QUICK)
    pairs = ImageTextPairs(torch.eye(4), torch.eye(4), torch.arange(4).repeat(2, 1).T)
    plain = ImageTextEmbedder(Precomputed(), Precomputed(), tokens="uncertainty")
    with pytest.raises(InputError, match=r"of images gives one vector.*tokens='head'"):
        plain.fit(pairs, epochs=1, generator=0, batch_size=4, progress=False)
    fitted = make().fit(coloured(), epochs=1, generator=0, **QUICK)
    fitted.towers = type(fitted.towers)(nn.Flatten(), fitted.towers.text)
    with pytest.raises(InputError, match="size 768, in the fit it was 2 x 16"):
        fitted.embed_image(coloured().images)
    for name in ("first_trace", "encoder_rate"):
        with pytest.raises(InputError, match=f"{name}=0"):
            make(**{name: 0})
    with pytest.raises(InputError, match="layer_norm=1"):
        make(layer_norm=1)


def test_pixels_are_centred_by_the_users_own():
    images = rand(5) * torch.tensor([0.2, 0.5, 1.0])[:, None, None]
    encoder = ImageTransformer.of(images, 4, **SMALL)
    pixels = images.double().transpose(0, 1).flatten(1)
    assert encoder.mean == pytest.approx(pixels.mean(1).tolist())
    assert encoder.std == pytest.approx(pixels.std(1).tolist())
    other = ImageTransformer(16, 4, mean=[0.0] * 3, std=[1.0] * 3, **SMALL)
    other.load_state_dict(encoder.state_dict())
    centred = (images - pixels.mean(1)[:, None, None]) / pixels.std(1)[:, None, None]
    low = float(centred.min())  # into [0, 1], and the first layer takes it back
    with torch.no_grad():
        other.patches.bias += (other.patches.weight * low).sum((1, 2, 3))
        scale = float(centred.max()) - low
        other.patches.weight *= scale
    torch.testing.assert_close(encoder(images), other(((centred - low) / scale).float()))
    with pytest.raises(InputError, match="all of one colour"):
        ImageTransformer.of(torch.ones(2, 3, 16, 16))
    with pytest.raises(InputError, match=r"mean=\(1, 2\): pass three numbers"):
        ImageTransformer(16, 4, mean=(1, 2))
    with pytest.raises(InputError, match="above 0"):
        ImageTransformer(16, 4, std=(1, 0, 1))


def test_places_matter():
    """Half of the image moved, a word moved: other features, by more than rounding."""
    images, encoder, texts = rand(2), image_encoder().double(), text_encoder().double()
    with torch.no_grad():
        moved = encoder(images) - encoder(images.roll(8, dims=3))
        words = texts(["a red square"]) - texts(["red a square"])
    assert float(moved.abs().max()) > 1e-4
    assert float(words.abs().max()) > 1e-4


def test_the_posterior_is_over_the_mean_of_the_first_token():
    pairs = coloured()
    embedder = make().fit(pairs, epochs=1, generator=0, **QUICK)
    posterior, heads = embedder.fitted_.posteriors[0], embedder.fitted_.heads
    with torch.no_grad():
        h = heads.image(embedder.towers.image.eval()(pairs.images)).inputs
        oracle = posterior.standardised(h)[1]
    embedded = embedder.embed_image(pairs.images)
    torch.testing.assert_close(embedded.epistemic, oracle)
    assert embedded.head_inputs.shape == (32, 2 * 16)


def test_ambiguity_and_search_are_of_both_tokens():
    pairs = coloured()
    embedder = make().fit(pairs, epochs=1, generator=0, **QUICK)
    for embedded in (embedder.embed_image(pairs.images), embedder.embed_text(TEXTS)):
        torch.testing.assert_close(embedded.ambiguity, embedded.uncertainty)
    index = embedder.index_images(pairs.images, progress=False)
    result = index.search(list(COLOURS), k=32)
    similarity = embedder.similarity(
        embedder.embed_text(COLOURS), embedder.embed_image(pairs.images)
    )
    expected = similarity.argsort(1, descending=True)
    first = torch.as_tensor(result.ids)[:, 0]
    torch.testing.assert_close(
        similarity.gather(1, first[:, None]), similarity.gather(1, expected[:, :1])
    )
