"""Training: it learns, resumes to the same bits, stops at a collapse, refuses bad input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric.errors import (
    CollapseError,
    DtypeError,
    FileFormatError,
    InputError,
    NonFiniteError,
    NotFittedError,
    UnknownNameError,
)
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs, Objective, ProLIP
from laplace_metric.image_text import _objectives as objectives
from laplace_metric.image_text._heads import GaussianHead, HeadOutput
from laplace_metric.image_text._training import SpreadMonitor
from laplace_metric.models import Precomputed
from tests.image_text.conftest import CLASSES, features, make_embedder, make_pairs, state

QUICK = {"batch_size": 30, "learning_rate": 0.02, "progress": False}


@pytest.mark.parametrize("objective", ["prolip", "pcme++", "siglip", "clip"])
def test_every_objective_learns_to_match_new_images(objective, pairs):
    embedder = make_embedder(objective).fit(pairs, epochs=15, generator=0, **QUICK)
    new = embedder.embed_image(features(seed=9))
    similarity = embedder.similarity(new, embedder.embed_text(pairs.texts))[:, :CLASSES]
    right = similarity.argmax(1) == torch.arange(len(new)) % CLASSES
    assert float(right.float().mean()) > 0.8  # of six
    losses = embedder.fitted_.losses
    assert losses[-1] < 0.6 * losses[0]
    assert len(embedder.fitted_.spreads["images"]) == len(losses) == 15


@pytest.mark.parametrize("objective", ["prolip", "pcme++"])
def test_heads_with_variances_give_them(objective, pairs):
    embedder = make_embedder(objective).fit(pairs, epochs=2, generator=0, **QUICK)
    text = embedder.embed_text(pairs.texts)
    assert bool((text.variance > 0).all())
    torch.testing.assert_close(text.uncertainty, text.variance.sum(1))
    torch.testing.assert_close(text.mean.norm(dim=1), torch.ones(len(text)))


def test_the_first_variances_are_a_trace_whatever_the_size():
    for dim in (4, 64, 384):
        with torch.random.fork_rng():
            head = GaussianHead(20, dim)
            trace = head(torch.randn(50, 20)).trace.detach()
        assert 0.25 < float(trace.mean()) < 0.5


def test_a_seed_decides_the_result(pairs):
    fits = [
        make_embedder(dropout=0.2).fit(pairs, epochs=2, generator=s, **QUICK) for s in (1, 1, 2)
    ]
    first, second, third = (state(fit) for fit in fits)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    assert not all(bool((first[k] == third[k]).all()) for k in first)


class Interrupted(Exception):
    """Thrown by the loss."""


class Fragile(ProLIP):
    """Fails at one step."""

    def __init__(self, at: int) -> None:
        super().__init__(contrast=1.0)
        self._at = at

    def forward(self, *args: object) -> torch.Tensor:
        if self._calls == self._at:
            raise Interrupted
        self._calls += 1
        return super().forward(*args)

    _calls = 0


@pytest.mark.parametrize("at", [1, 4, 6])
def test_an_interrupted_fit_resumes_to_the_same_bits(at, pairs, tmp_path):
    """Four steps an epoch: within the first, at the end of one, within the second."""
    how = {"epochs": 3, "generator": 4, **QUICK}
    whole = make_embedder(Fragile(-1), dropout=0.3)
    whole.fit(pairs, checkpoint=tmp_path / "whole", **how)
    broken = make_embedder(Fragile(at), dropout=0.3)
    with pytest.raises(Interrupted):
        broken.fit(pairs, checkpoint=tmp_path / "broken", **how)
    with pytest.raises(NotFittedError):
        broken.embed_image(pairs.images)
    resumed = make_embedder(Fragile(-1), dropout=0.3)
    resumed.fit(pairs, checkpoint=tmp_path / "broken", **how)
    first, second = state(whole), state(resumed)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    assert whole.fitted_.losses == resumed.fitted_.losses
    assert whole.fitted_.spreads == resumed.fitted_.spreads


def test_a_checkpoint_of_another_run_is_refused(pairs, tmp_path):
    make_embedder().fit(pairs, epochs=2, generator=0, checkpoint=tmp_path, **QUICK)
    how = {**QUICK, "learning_rate": 0.1}
    with pytest.raises(FileFormatError, match="learning_rate"):
        make_embedder().fit(pairs, epochs=2, generator=0, checkpoint=tmp_path, **how)
    with pytest.raises(FileFormatError, match="objective"):
        make_embedder("siglip").fit(pairs, epochs=2, generator=0, checkpoint=tmp_path, **QUICK)
    other = make_embedder(ProLIP(vib=1e-3))
    with pytest.raises(FileFormatError, match="weights"):
        other.fit(pairs, epochs=2, generator=0, checkpoint=tmp_path, **QUICK)


class Pushes(Objective):
    """Drives one number of one side to where it must not go."""

    def __init__(self, what: str) -> None:
        super().__init__(1.0, 0.0)
        self.what = what

    def forward(self, image: HeadOutput, text: HeadOutput, *_: object) -> torch.Tensor:
        if self.what == "means":
            return (text.mu - torch.ones(8) / 8**0.5).square().sum()
        return (1.0 if self.what == "collapsed" else -1.0) * text.log_v.mean()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("means", "the means of the texts have collapsed"),
        ("collapsed", "the variances of the texts have collapsed"),
        ("exploded", "the variances of the texts have exploded"),
    ],
)
def test_a_collapse_stops_the_training_and_is_named(what, message, pairs):
    how = {**QUICK, "learning_rate": 0.3}
    with pytest.raises(CollapseError, match=message):
        make_embedder(Pushes(what)).fit(pairs, epochs=40, generator=0, **how)


def test_variances_that_are_all_alike_are_named():
    monitor = SpreadMonitor("images")
    monitor.add(HeadOutput(torch.ones(3, 1), torch.eye(3), torch.zeros(3, 3)))
    with pytest.raises(CollapseError, match="variances of the images are all alike"):
        monitor.finish_epoch()


def test_spreads_are_those_of_the_epoch():
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(20, 3, generator=g, dtype=torch.float64)
    log_v = torch.randn(20, 3, generator=g, dtype=torch.float64)
    out = HeadOutput(raw, raw, log_v)
    monitor = SpreadMonitor("images")
    for rows in (slice(0, 7), slice(7, 20)):
        monitor.add(HeadOutput(raw[rows], raw[rows], log_v[rows]))
    spread = monitor.finish_epoch()
    log_trace = log_v.exp().sum(1).log()
    assert spread.means == pytest.approx(1 - float(out.mu.mean(0).square().sum()))
    assert spread.log_v == pytest.approx(float(log_v.mean()))
    assert spread.trace == pytest.approx(float(log_trace.mean().exp()))
    assert spread.variation == pytest.approx(float(log_trace.std(correction=0)))


class Counting(nn.Module):
    """A linear encoder that counts its calls and knows whether it trained."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Linear(size, 5)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


def test_frozen_encoders_run_once_and_trained_ones_learn(pairs):
    for train in (False, True):
        encoders = Counting(12, 0), Counting(7, 1)
        before = [encoder.layer.weight.clone() for encoder in encoders]
        embedder = ImageTextEmbedder(*encoders, dim=8, train_encoders=train)
        embedder.fit(pairs, epochs=2, generator=0, **QUICK)
        for encoder, weight in zip(encoders, before, strict=True):
            assert encoder.training
            assert bool((encoder.layer.weight == weight).all()) is not train
            assert (encoder.calls == 1) is not train


def test_functions_are_encoders_too(pairs):
    embedder = ImageTextEmbedder(lambda x: 2 * x, lambda x: x + 1, dim=8)
    embedder.fit(pairs, epochs=1, generator=0, **QUICK)
    assert len(embedder.embed_text(pairs.texts)) == pairs.n_texts
    with pytest.raises(InputError, match=r"needs a torch\.nn\.Module as image_encoder"):
        ImageTextEmbedder(lambda x: x, lambda x: x, train_encoders=True)


def refused(pairs: ImageTextPairs, **changes: object) -> None:
    make_embedder().fit(pairs, **{"epochs": 1, "generator": 0, **QUICK, **changes})


def test_bad_input_is_named(pairs):
    embedder = make_embedder()
    with pytest.raises(NotFittedError, match=r"call fit\(pairs\)"):
        embedder.embed_image(pairs.images)
    with pytest.raises(InputError, match="batch_size=1"):
        refused(pairs, batch_size=1)
    with pytest.raises(InputError, match="learning_rate"):
        refused(pairs, learning_rate=-1.0)
    with pytest.raises(InputError, match="pass ImageTextPairs"):
        refused([("a.png", "a")])
    with pytest.raises(DtypeError, match="features of images are torch.float64"):
        refused(ImageTextPairs(pairs.images.double(), pairs.texts, pairs.pairs))
    images = pairs.images.clone()
    images[3, 0] = torch.nan
    encoders = (lambda x: x, lambda x: x)
    damaged = ImageTextPairs(images, pairs.texts, pairs.pairs)
    with pytest.raises(NonFiniteError, match="first in row 3"):
        ImageTextEmbedder(*encoders).fit(damaged, epochs=1, generator=0, **QUICK)
    with pytest.raises(UnknownNameError, match="objective='clipp'"):
        make_embedder("clipp")
    with pytest.raises(InputError, match="dropout"):
        make_embedder(dropout=1.0)


def test_features_of_another_size_are_named(fitted):
    with pytest.raises(InputError, match="size 7, in the fit it was 12"):
        fitted.embed_image(torch.zeros(2, 7))


def test_a_single_input_is_embedded_like_a_batch(fitted, pairs):
    one, all_ = fitted.embed_image(pairs.images[:1]), fitted.embed_image(pairs.images)
    torch.testing.assert_close(one.mean, all_.mean[:1])
    torch.testing.assert_close(one.epistemic, all_.epistemic[:1])


def test_contrast_takes_texts_that_are_not_the_images_own():
    match = torch.tensor([[True, False, True], [True, True, True]])
    i = torch.tensor([0, 1, 0])
    with torch.random.fork_rng():
        rows, k = objectives._other_texts(match, i)
    assert rows.tolist() == [0, 2]
    assert k.tolist() == [1, 1]


def test_precomputed_and_doubles_stay_doubles():
    pairs = make_pairs()
    double = ImageTextPairs(pairs.images.double(), pairs.texts.double(), pairs.pairs)
    embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=8)
    embedder.fit(double, epochs=1, generator=0, **QUICK)
    assert embedder.embed_image(double.images).mean.dtype == torch.float64
