"""Epistemic numbers, inclusion with its control, and files."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    ProLIP,
    SigLIP,
    _inclusion_calibration,
    inclusion_score,
)
from laplace_metric.image_text._inclusion_calibration import InclusionCalibration
from laplace_metric.models import Precomputed
from tests.image_text.conftest import features, make_embedder, make_pairs, state
from tests.saved_files import rewrite

QUICK = {"epochs": 2, "batch_size": 30, "progress": False, "seed": 0}


def test_epistemic_is_the_spread_of_means_under_sampled_weights(pairs):
    embedder = make_embedder(n_effective=1e5, prior_precision=1e3)
    embedder.fit(pairs, **QUICK)
    image = embedder.embed_image(pairs.images[:4])
    tower = embedder.fitted_.posteriors[0]
    weights = tower.posterior.sample(20_000, 3)
    z = tower.head.forward_with(image.head_inputs, weights)
    mu = torch.nn.functional.normalize(z, dim=-1)
    sampled = mu.var(0).sum(-1)
    torch.testing.assert_close(image.weight_variance, sampled, rtol=0.05, atol=0)


@pytest.mark.parametrize("objective", ["prolip", "clip"])
def test_epistemic_knows_foreign_images_and_more_data_lowers_it(objective, pairs):
    n, m = pairs.n_images, pairs.n_texts
    embedder = make_embedder(objective).fit(pairs, **{**QUICK, "epochs": 8, "learning_rate": 0.02})
    for tower in embedder.fitted_.posteriors:
        assert tower.posterior.n_effective == (n * m if objective == "prolip" else n + m)
    near = embedder.embed_image(features(seed=9))
    g = torch.Generator().manual_seed(3)
    foreign = embedder.embed_image(3 * torch.randn(60, 12, generator=g))
    assert float(near.weight_variance.median()) < float(foreign.weight_variance.median())
    known, unknown = (
        make_embedder(objective, n_effective=n).fit(pairs, **QUICK).embed_image(pairs.images)
        for n in (1e6, 1e2)
    )
    assert bool((known.weight_variance < unknown.weight_variance).all())


class Neither(SigLIP):
    """Of a user, without a sigmoid or a softmax."""

    def scale(self) -> None:
        """None."""


def test_an_objective_without_a_probability_has_no_epistemic(pairs):
    embedder = make_embedder(Neither()).fit(pairs, **QUICK)
    image, text = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    with pytest.raises(NotFittedError):
        _ = image.weight_variance
    with pytest.raises(NotFittedError, match="no probability"):
        embedder.match_logit(image, text)
    with pytest.raises(InputError, match="no probability.*no posterior"):
        embedder.fit_posterior(pairs)
    with pytest.raises(InputError, match="no variance"):
        embedder.calibrate_inclusion(pairs, seed=0)


@pytest.mark.parametrize("objective", ["prolip", "pcme++"])
def test_the_logit_is_that_of_the_loss(objective, pairs):
    embedder = make_embedder(objective).fit(pairs, **QUICK)
    image, text = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    own = embedder.fitted_.heads.objective
    a, b = float(own.a.detach()), float(own.b.detach())
    s = embedder.similarity(image, text)
    oracle = a * s + b if objective == "prolip" else b - a * (2 - 2 * s)
    torch.testing.assert_close(embedder.match_logit(image, text), oracle)


def test_inclusion_with_its_control(fitted):
    held_out = make_pairs(seed=9)
    fitted.fitted_.inclusion = None
    with pytest.raises(NotFittedError, match="calibrate_inclusion"):
        fitted.includes(fitted.embed_text(held_out.texts), fitted.embed_text(held_out.texts))
    calibration = fitted.calibrate_inclusion(held_out, seed=0)
    assert calibration.auroc > 0.75
    image, text = fitted.embed_image(held_out.images), fitted.embed_text(held_out.texts)
    i, j = held_out.pairs.unbind(1)
    own = fitted.includes(text[j], image[i])
    torch.testing.assert_close(own.score, inclusion_score(image[i], text[j]))
    other = fitted.includes(text[(j + 3) % 6], image[i])
    assert float(other.probability.mean()) < float(own.probability.mean()) - 0.1
    assert float(own.control.median()) < 0.3 < float(other.control.median())
    with pytest.raises(InputError, match="row by row"):
        fitted.includes(text, image)


def test_the_probability_is_calibrated_at_even_odds():
    """Scores N(1, 1) against N(-1, 1): the log odds are 2 x."""
    g = torch.Generator().manual_seed(0)
    own, random = 1 + torch.randn(20_000, generator=g), torch.randn(5_000, generator=g) - 1
    calibration = InclusionCalibration.of(own, random)
    assert calibration.slope == pytest.approx(2, abs=0.1)
    assert calibration.offset == pytest.approx(0, abs=0.1)
    assert calibration.auroc == pytest.approx(0.921, abs=0.01)  # Phi(sqrt 2)
    answer = calibration(torch.tensor([-1.0, -9.0, 9.0]))
    assert float(answer.control[0]) == pytest.approx(0.5, abs=0.03)
    assert answer.control[1:].tolist() == pytest.approx([1.0, 1 / 5_001])


def test_random_partners_are_of_the_same_images_and_never_their_own(monkeypatch):
    pairs = make_pairs()
    monkeypatch.setattr(_inclusion_calibration, "BLOCK", 7)
    images, texts = _inclusion_calibration.random_partners(pairs, torch.Generator().manual_seed(0))
    assert images.tolist() == pairs.pairs[:, 0].tolist()
    assert not bool(pairs.match(images, texts).diagonal().any())
    assert len(texts.unique()) == pairs.n_texts
    all_ = ImageTextPairs(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[0, 0], [0, 1]]))
    with pytest.raises(InputError, match="every image.*every text"):
        _inclusion_calibration.random_partners(all_, None)


@pytest.mark.parametrize("objective", [ProLIP(vib=1e-3), "clip"])
def test_a_saved_embedder_answers_as_before(objective, pairs, tmp_path):
    embedder = make_embedder(objective).fit(pairs, **QUICK)
    if embedder.objective.probabilistic:
        embedder.calibrate_inclusion(make_pairs(seed=9), seed=0)
    embedder.save(tmp_path / "saved")
    loaded = ImageTextEmbedder.load(tmp_path / "saved", Precomputed(), Precomputed())
    assert loaded.settings == embedder.settings
    assert loaded.objective.settings == embedder.objective.settings
    assert loaded.fitted_.losses == embedder.fitted_.losses
    assert repr(loaded.fitted_.spreads) == repr(embedder.fitted_.spreads)  # NaN for "clip"
    before, after = state(embedder), state(loaded)
    assert all(bool((before[k] == after[k]).all()) for k in before)
    answers = []
    for one in (embedder, loaded):
        text, image = one.embed_text(pairs.texts), one.embed_image(pairs.images[:8])
        values = [x for e in (image, text) for x in (e.mean, e.variance, e.weight_variance)]
        if one.fitted_.inclusion is not None:
            included = one.includes(text, image)
            values += [included.score, included.probability, included.control]
        answers.append(values)
    torch.testing.assert_close(*answers, rtol=0, atol=0)


class Own(ProLIP):
    """Of a user."""


def test_damage_and_missing_parts_are_named(pairs, tmp_path):
    with pytest.raises(NotFittedError):
        make_embedder().save(tmp_path / "saved")
    make_embedder(Own()).fit(pairs, **QUICK).save(tmp_path / "own")
    with pytest.raises(InputError, match="objective.*your own"):
        ImageTextEmbedder.load(tmp_path / "own", Precomputed(), Precomputed())
    how = {"objective": Own()}
    assert ImageTextEmbedder.load(tmp_path / "own", Precomputed(), Precomputed(), **how)
    rewrite(tmp_path / "own", "heads", lambda content, _: content["settings"].update(dim=16))
    with pytest.raises(FileFormatError, match="damaged"):
        ImageTextEmbedder.load(tmp_path / "own", Precomputed(), Precomputed(), **how)
    with pytest.raises(FileFormatError, match="none does not"):
        ImageTextEmbedder.load(tmp_path / "none", Precomputed(), Precomputed())
