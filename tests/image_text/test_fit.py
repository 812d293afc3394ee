"""Training: it learns, resumes to the same bits, masks, stops at a collapse, refuses bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplace_metric.errors import (
    CollapseError,
    DtypeError,
    FileFormatError,
    InputError,
    NonFiniteError,
    NotFittedError,
    UnknownNameError,
)
from laplace_metric.heads._repeatable import ROWS
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    Objective,
    ProLIP,
    inclusion_loss,
)
from laplace_metric.image_text._head import GaussianHead, HeadOutput
from laplace_metric.image_text.towers._spread import SpreadMonitor
from tests.image_text.conftest import CLASSES, features, make_embedder, make_pairs, state

QUICK = {"batch_size": 30, "learning_rate": 0.02, "progress": False}


@pytest.mark.parametrize("objective", ["prolip", "pcme++", "siglip", "clip"])
def test_every_objective_learns_to_match_new_images(objective, pairs):
    embedder = make_embedder(objective).fit(pairs, epochs=15, seed=0, **QUICK)
    new = embedder.embed_image(features(seed=9))
    similarity = embedder.similarity(new, embedder.embed_text(pairs.texts))[:, :CLASSES]
    right = similarity.argmax(1) == torch.arange(len(new)) % CLASSES
    assert float(right.float().mean()) > 0.8  # of six
    losses = embedder.fitted_.losses
    assert losses[-1] < 0.6 * losses[0]
    assert len(embedder.fitted_.spreads["images"]) == len(losses) == 15


class TwoVectors(nn.Module):
    """A linear encoder of [CLS] and [UNC] that counts the rows it was given."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer, self.dropout = nn.Linear(size, 10), nn.Dropout(0.1)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return self.dropout(self.layer(x)).view(len(x), 2, 5)


def make_two(objective: str | Objective = "prolip", **changes) -> ImageTextEmbedder:
    how = {"dim": 8, "tokens": "uncertainty", "train_encoders": True, **changes}
    return ImageTextEmbedder(TwoVectors(12, 0), TwoVectors(7, 1), objective=objective, **how)


def everything(embedder: ImageTextEmbedder) -> dict[str, Tensor]:
    return {**state(embedder), **nn.ModuleList(embedder.towers).state_dict()}


class Interrupted(Exception):
    """Thrown by the loss."""


class Fragile(ProLIP):
    """Fails at one step."""

    def __init__(self, at: int) -> None:
        super().__init__(masked=0.1)
        self._at, self._calls = at, 0

    def forward(self, *args: object) -> Tensor:
        if self._calls == self._at:
            raise Interrupted
        self._calls += 1
        return super().forward(*args)


@pytest.mark.parametrize("at", [1, 4, 6])
def test_an_interrupted_fit_resumes_to_the_same_bits(at, pairs, tmp_path):
    """Four steps an epoch: within the first, at the end of one, within the second."""
    how = {"epochs": 3, "seed": 4, **QUICK}
    how["masked"] = (pairs.images / 2, None)
    whole = make_two(Fragile(-1), dropout=0.3).fit(pairs, checkpoint=tmp_path / "whole", **how)
    broken = make_two(Fragile(at), dropout=0.3)
    with pytest.raises(Interrupted):
        broken.fit(pairs, checkpoint=tmp_path / "broken", **how)
    with pytest.raises(NotFittedError):
        broken.embed_image(pairs.images)
    resumed = make_two(Fragile(-1), dropout=0.3)
    resumed.fit(pairs, checkpoint=tmp_path / "broken", **how)
    first, second = everything(whole), everything(resumed)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    assert whole.fitted_.losses == resumed.fitted_.losses
    assert whole.fitted_.spreads == resumed.fitted_.spreads


def test_a_checkpoint_of_another_run_is_refused(pairs, tmp_path):
    make_embedder().fit(pairs, epochs=2, seed=0, checkpoint=tmp_path, **QUICK)
    how = {**QUICK, "learning_rate": 0.1}
    with pytest.raises(FileFormatError, match="learning_rate"):
        make_embedder().fit(pairs, epochs=2, seed=0, checkpoint=tmp_path, **how)
    with pytest.raises(FileFormatError, match="objective"):
        make_embedder("siglip").fit(pairs, epochs=2, seed=0, checkpoint=tmp_path, **QUICK)
    other = make_embedder(ProLIP(vib=1e-3))
    with pytest.raises(FileFormatError, match="weights"):
        other.fit(pairs, epochs=2, seed=0, checkpoint=tmp_path, **QUICK)


def test_a_checkpoint_of_other_pairs_is_refused(pairs, tmp_path):
    """As many images, texts and pairs as then."""
    how = {"epochs": 2, "seed": 0, "checkpoint": tmp_path, **QUICK}
    first = make_embedder().fit(pairs, **how)
    images, texts, rows = pairs.images, pairs.texts, pairs.pairs
    turned = torch.stack([rows[:, 0].roll(2), rows[:, 1]], 1)
    for other, message in (
        (ImageTextPairs(images, texts, turned), "another run: rows of pairs"),
        (ImageTextPairs(images.flip(0), texts, rows), "another run.*images"),
        (ImageTextPairs(images, texts + 1, rows), "another run.*texts"),
    ):
        with pytest.raises(FileFormatError, match=message):
            make_embedder().fit(other, **how)
    rounded = images.double().mul(1 + 1e-7).float()  # as another number of threads computes them
    again = make_embedder().fit(ImageTextPairs(rounded, texts, rows), **how)
    assert again.fitted_.losses == first.fitted_.losses


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
        make_embedder(Pushes(what)).fit(pairs, epochs=40, seed=0, **how)


def test_spreads_are_those_of_the_epoch():
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(20, 3, generator=g, dtype=torch.float64)
    log_v = torch.randn(20, 3, generator=g, dtype=torch.float64)
    out = HeadOutput(raw, raw, log_v)
    monitor = SpreadMonitor("images")
    for rows in (slice(0, 7), slice(7, 20)):
        monitor.add(HeadOutput(raw[rows], raw[rows], log_v[rows]))
    monitor.finish_epoch()
    (spread,) = monitor.history
    log_trace = log_v.exp().sum(1).log()
    assert spread.means == pytest.approx(1 - float(out.mu.mean(0).square().sum()))
    assert spread.log_v == pytest.approx(float(log_v.mean()))
    assert spread.trace == pytest.approx(float(log_trace.mean().exp()))
    assert spread.variation == pytest.approx(float(log_trace.std(correction=0)))


@pytest.mark.parametrize("train", [False, True])
def test_frozen_encoders_run_once_and_trained_ones_learn_at_their_rate(train, pairs):
    moved = []
    for rate in (1.0, 1e-6):
        embedder = make_two(train_encoders=train, encoder_rate=rate)
        encoders = embedder.towers.image, embedder.towers.text
        before = [encoder.layer.weight.detach().clone() for encoder in encoders]
        embedder.fit(pairs, epochs=2, seed=0, **{**QUICK, "weight_decay": 0.0})
        for encoder in encoders:
            assert encoder.training
            n = len(pairs.images) if encoder is encoders[0] else len(pairs.texts)
            again = 3 * min(ROWS, n // 2)
            assert (encoder.rows == n + again) is not train
        after = [encoder.layer.weight.detach() for encoder in encoders]
        moved.append(min(float((a - b).norm()) for a, b in zip(after, before, strict=True)))
    assert moved[1] < 1e-4 * moved[0] if train else moved == [0, 0]


def test_variances_come_from_their_own_token(pairs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs, head = torch.randn(4, 2, 6), GaussianHead(6, 3, tokens="uncertainty")
        before = head(inputs)
        for token, changed in enumerate((("inputs", "raw"), ("log_v",))):
            other = inputs.clone()
            other[:, token] = torch.randn(4, 6)
            after = head(other)
            for name in ("inputs", "raw", "log_v"):
                same = getattr(before, name) == getattr(after, name)
                assert bool(same.all()) is (name not in changed)
    embedder = make_two().fit(pairs, epochs=1, seed=0, **QUICK)
    posterior, heads = embedder.fitted_.posteriors[0], embedder.fitted_.heads
    with torch.no_grad():
        h = heads.image(embedder.towers.image.eval()(pairs.images)).inputs
    embedded = embedder.embed_image(pairs.images)
    torch.testing.assert_close(embedded.weight_variance, posterior.parts(h).epistemic)
    torch.testing.assert_close(embedded.ambiguity, embedded.uncertainty)


def test_tokens_must_be_what_the_encoders_give(pairs):
    with pytest.raises(InputError, match=r"images.*\[CLS\] and \[UNC\].*'uncer"):
        make_two(tokens="head").fit(pairs, epochs=1, seed=0, **QUICK)
    with pytest.raises(InputError, match=r"images.*one vector.*tokens='head'"):
        make_embedder(tokens="uncertainty").fit(pairs, epochs=1, seed=0, **QUICK)


class Recorded(ProLIP):
    """Keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(masked=0.5, c=3.0, epsilon=-2.0)
        self.seen: list[tuple[Tensor, ...]] = []

    def __deepcopy__(self, _: object) -> Recorded:
        return self

    def masked_loss(self, full: HeadOutput, part: HeadOutput) -> Tensor:
        value = super().masked_loss(full, part)
        self.seen.append((full.inputs.detach(), part.inputs.detach(), value.detach()))
        return value


def test_the_masked_term_is_the_inclusion_of_the_same_rows_in_what_is_left_of_them(pairs):
    """Precomputed: the masked rows are the full ones, negated, so each is found again."""
    objective = Recorded()
    how = {**QUICK, "epochs": 1, "seed": 0}
    embedder = make_embedder(objective, layer_norm=False)
    embedder.fit(pairs, masked=(-pairs.images, -pairs.texts), **how)
    assert len(objective.seen) == 2 * 4  # both sides of four steps
    for full, part, _ in objective.seen:
        assert bool((full == -part).all())
    only = Recorded()
    make_embedder(only).fit(pairs, masked=(-pairs.images, None), **how)
    assert len(only.seen) == 4
    g = torch.Generator().manual_seed(0)
    full, part = (HeadOutput(*torch.randn(3, 4, 5, generator=g)) for _ in range(2))
    oracle = inclusion_loss(full.mu, full.log_v, part.mu, part.log_v, c=3.0, epsilon=-2.0) / 2
    torch.testing.assert_close(only.masked_loss(full, part), oracle)


def test_functions_and_doubles(pairs):
    embedder = ImageTextEmbedder(lambda x: 2 * x.double(), lambda x: x.double() + 1, dim=8)
    embedder.fit(pairs, epochs=1, seed=0, **QUICK)
    all_, one = embedder.embed_text(pairs.texts), embedder.embed_text(pairs.texts[:1])
    assert all_.mean.dtype == torch.float64
    torch.testing.assert_close(one.weight_variance, all_.weight_variance[:1])
    with pytest.raises(NonFiniteError, match="first.*row 3"):
        embedder.fit(damaged(pairs), epochs=1, seed=0, **QUICK)
    with pytest.raises(InputError, match=r"needs.*torch\.nn\.Module.*image_encoder"):
        ImageTextEmbedder(lambda x: x, lambda x: x, train_encoders=True)


def damaged(pairs: ImageTextPairs) -> ImageTextPairs:
    images = pairs.images.clone()
    images[3, 0] = torch.nan
    return ImageTextPairs(images, pairs.texts, pairs.pairs)


def doubled(pairs: ImageTextPairs) -> ImageTextPairs:
    return ImageTextPairs(pairs.images.double(), pairs.texts, pairs.pairs)


MASKED = ProLIP(masked=0.1)


@pytest.mark.parametrize(
    ("settings", "changes", "error", "message"),
    [
        ({}, {"learning_rate": -1.0}, InputError, "learning_rate"),
        ({}, {"pairs": [("a.png", "a")]}, InputError, "pass ImageTextPairs"),
        ({}, {"pairs": doubled}, DtypeError, "features of images are torch.float64"),
        ({"objective": "clipp"}, {}, UnknownNameError, "objective='clipp'"),
        ({"tokens": "unc"}, {}, UnknownNameError, "tokens='unc'"),
        ({"first_trace": 0}, {}, InputError, "first_trace=0"),
        ({}, {"masked": (features(), None)}, InputError, "pass both or neither"),
        ({"objective": MASKED}, {}, InputError, "pass both or neither"),
        ({"objective": MASKED}, {"masked": (features(1), None)}, InputError, "6 inputs for 60"),
        ({"objective": MASKED}, {"masked": (features()[:, :3], None)}, InputError, r"\[60, 3\]"),
    ],
)
def test_bad_input_is_named(settings, changes, error, message):
    given = changes.get("pairs", make_pairs())
    given = given(make_pairs()) if callable(given) else given
    how = {"epochs": 1, "seed": 0, **QUICK, **changes, "pairs": given}
    with pytest.raises(error, match=message):
        make_embedder(**settings).fit(**how)


def test_the_first_variances_are_a_trace_whatever_the_size():
    for dim in (4, 64, 384):
        with torch.random.fork_rng():
            head = GaussianHead(20, dim)
            trace = head(torch.randn(50, 20)).trace.detach()
        assert 0.25 < float(trace.mean()) < 0.5


def test_variances_that_are_all_alike_are_named():
    monitor = SpreadMonitor("images")
    monitor.add(HeadOutput(torch.ones(3, 1), torch.eye(3), torch.zeros(3, 3)))
    with pytest.raises(CollapseError, match="variances.*images.*alike"):
        monitor.finish_epoch()


def test_the_masked_term_is_added_to_the_loss(pairs):
    """At the first step weights are the same: losses differ by the term."""
    how = {**QUICK, "batch_size": 999, "epochs": 1, "seed": 0}
    without = make_embedder(ProLIP(c=3.0, epsilon=-2.0)).fit(pairs, **how).fitted_.losses[0]
    objective = Recorded()
    masked = (pairs.images / 2 + 1, pairs.texts.flip(1))
    with_it = make_embedder(objective).fit(pairs, masked=masked, **how).fitted_.losses[0]
    term = sum(float(value) for _, _, value in objective.seen)
    assert term > 0
    assert with_it == pytest.approx(without + term, rel=1e-6)
