"""Encoders that train from nothing: what is hidden stays hidden, places matter, they learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.image_text import towers
from benchmarks.image_text.towers import ImageTransformer, TextTransformer, drop_words, masked
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs, ProLIP

pytest.importorskip("tokenizers", reason="needs the package tokenizers")

COLOURS = ("red", "green", "blue", "grey")
TEXTS = [*COLOURS, "a red square", "a blue square", "something very big and red", "a dot"]
SMALL = {"width": 16, "depth": 2, "heads": 2}


def images(n: int) -> Tensor:
    """[n, 3, 16, 16] in [0, 1]."""
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(n))


def image_encoder(**changes) -> ImageTransformer:
    return ImageTransformer(images(4), 4, **{**SMALL, "seed": 0, **changes})


def text_encoder(**changes) -> TextTransformer:
    return TextTransformer(TEXTS, 60, **{**SMALL, "seed": 1, **changes})


def test_padding_hides_what_stands_there_and_long_texts_are_cut():
    encoder = text_encoder().double().eval()
    numbers, padding = encoder.pieces(["red", "a very big blue square"])
    other = numbers.clone()
    other[0, 1:] = 5
    with torch.no_grad():
        a, b = encoder.encode(numbers, padding), encoder.encode(other, padding)
        torch.testing.assert_close(a[:1], encoder(["red"]))
        short = text_encoder(length=3)
        torch.testing.assert_close(short(["a red square dot"]), short(["a red square"]))
    assert bool((a == b).all())


def test_hidden_patches_are_not_seen_and_places_matter(monkeypatch):
    kept = torch.tensor([[0, 3, 5, 15], [1, 2, 3, 4]])
    monkeypatch.setattr(towers, "kept_places", lambda *_: kept)
    encoder, seen, share = image_encoder().double(), images(2).double(), torch.full((2,), 0.75)
    hidden, shown = seen.clone(), seen.clone()
    for row, places in enumerate(kept.tolist()):
        for place in range(16):
            y, x = 4 * (place // 4), 4 * (place % 4)
            changed = shown if place in places else hidden
            changed[row, :, y : y + 4, x : x + 4] = 0.25
    with torch.no_grad():
        before = encoder(seen, share)
        assert bool((encoder(hidden, share) == before).all())
        assert not bool((encoder(shown, share) == before).any())
        moved = encoder(seen) - encoder(seen.roll(8, dims=3))
        words = text_encoder()(["a red square"]) - text_encoder()(["red a square"])
    assert float(moved.abs().max()) > 1e-4
    assert float(words.abs().max()) > 1e-4


def test_masks_hide_their_share_of_words_and_patches():
    text = "one two three four five six seven eight"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        left = drop_words([text] * 20 + ["alone"], 0.75)
        kept = towers.kept_places(50, 16, 4, torch.device("cpu"))
    assert left[-1] == "alone"
    assert all(one.split() == [w for w in text.split() if w in one.split()] for one in left[:-1])
    assert {len(one.split()) for one in left[:-1]} == {2}
    assert len(set(left)) > 10
    assert bool((kept.diff(dim=1) > 0).all())
    assert len({tuple(row) for row in kept.tolist()}) > 40


def test_they_learn_from_nothing_and_a_seed_decides():
    seen = images(32) / 2
    for channel in range(3):
        seen[channel::4, channel] += 0.5
    pairs = ImageTextPairs.of(seen, [[c, f"a {c} square"] for c in COLOURS] * 8)
    fits = []
    for seed in (1, 1, 2):
        encoders = image_encoder(dropout=0.1), text_encoder(dropout=0.1)
        embedder = ImageTextEmbedder(
            *encoders, dim=8, objective=ProLIP(first_b=-2.0, masked=1e-3), tokens="uncertainty",
            train_encoders=True, encoder_rate=1.0,
        )  # fmt: skip
        how = {"batch_size": 16, "learning_rate": 0.005, "progress": False}
        fits.append(embedder.fit(pairs, epochs=15, masked=masked(pairs, 0.5), seed=seed, **how))
    first, second, third = (nn.ModuleList(f.towers).state_dict() for f in fits)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    assert not all(bool((first[k] == third[k]).all()) for k in first)
    image, text = fits[0].embed_image(seen), fits[0].embed_text(list(COLOURS))
    right = fits[0].similarity(image, text).argmax(1) == torch.arange(32) % 4
    assert bool(right.all())
