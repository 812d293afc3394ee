"""Cross-fitted scores: who has seen what, in which order, and planted wrong pairs."""

from __future__ import annotations

import pytest
import torch

from laplace_metric.errors import InputError
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import ImageTextPairs, inclusion_score, noisy_pairs
from laplace_metric.image_text._noisy_pairs import subset
from tests.image_text.conftest import CLASSES, features, make_embedder, make_pairs


def quick(part: ImageTextPairs, objective: str = "prolip", epochs: int = 8):
    how = {"batch_size": 30, "learning_rate": 0.02, "progress": False, "seed": 0}
    return make_embedder(objective).fit(part, epochs=epochs, **how)


@pytest.fixture(scope="module")
def spied():
    """Scores, and the parts that were fitted to with their embedders."""
    fits = []

    def fit(part: ImageTextPairs):
        embedder = quick(part)
        fits.append((part, embedder))
        return embedder

    pairs = make_pairs()
    return pairs, fits, noisy_pairs(fit, pairs, folds=3, seed=4)


def test_no_image_is_scored_by_a_model_that_has_seen_it(spied):
    pairs, fits, found = spied
    assert len(fits) == 3
    for k, (part, _) in enumerate(fits):
        held_out = found.images[found.fold == k].unique()
        seen = {tuple(row) for row in part.images.tolist()}
        assert not seen & {tuple(row) for row in pairs.images[held_out].tolist()}
        assert part.n_images + len(held_out) == pairs.n_images
    sizes = found.fold[found.images.diff(prepend=torch.tensor([-1])) > 0].bincount()
    assert int(sizes.max() - sizes.min()) <= 1


def test_scores_are_in_the_order_of_the_pairs(spied):
    pairs, fits, found = spied
    for row, (i, t) in enumerate(pairs.pairs.tolist()):
        embedder = fits[int(found.fold[row])][1]
        image, text = (
            embedder.embed_image(pairs.images[i : i + 1]),
            embedder.embed_text(pairs.texts),
        )
        logits = embedder.match_logit(image, text)[0]
        close = {"rel": 1e-4, "abs": 1e-5}
        s = embedder.similarity(image, text)[0, t]
        assert float(found.scores["match"][row]) == pytest.approx(-float(s), **close)
        other_text = logits.exp().mean().log() - logits[t]
        assert float(found.scores["other_text"][row]) == pytest.approx(float(other_text), **close)
        fold = found.images[found.fold == found.fold[row]].unique()
        column = embedder.match_logit(
            embedder.embed_image(pairs.images[fold]), embedder.embed_text(pairs.texts[t : t + 1])
        )[:, 0]
        other_image = column.exp().mean().log() - logits[t]
        assert float(found.scores["other_image"][row]) == pytest.approx(float(other_image), **close)
        inc = inclusion_score(image, text[t : t + 1])
        assert float(found.scores["inclusion"][row]) == pytest.approx(-float(inc), **close)
        trace = image.uncertainty + text.uncertainty[t]
        assert float(found.scores["ambiguity"][row]) == pytest.approx(float(trace), **close)


@pytest.mark.parametrize("objective", ["prolip", "siglip", "clip"])
def test_planted_wrong_pairs_are_found(objective):
    n = CLASSES * 20
    label = torch.arange(n) % CLASSES
    wrong = torch.rand(n, generator=torch.Generator().manual_seed(2)) < 0.2
    shown = torch.where(wrong, (label + 1 + torch.arange(n) % 4) % CLASSES, label)
    texts = torch.randn(CLASSES, 7, generator=torch.Generator().manual_seed(6))
    pairs = ImageTextPairs(features(20), texts, torch.stack([torch.arange(n), shown], 1))
    found = noisy_pairs(lambda part: quick(part, objective, 30), pairs, folds=3, seed=0)
    for name in ("match", "other_text", "other_image"):
        score = found.by_image()[name]
        assert auroc(score[~wrong], score[wrong]) > 0.9
    assert ("ambiguity" in found.scores) is (objective == "prolip")


def test_groups_stay_together():
    pairs = make_pairs()
    groups = torch.arange(pairs.n_images) // 5 + 100
    parts = []

    def fit(part):
        parts.append(part)
        return quick(part)

    found = noisy_pairs(fit, pairs, folds=2, groups=groups, seed=0)
    fold_of_image = torch.zeros(pairs.n_images).long().scatter(0, found.images, found.fold)
    for group in groups.unique():
        assert len(fold_of_image[groups == group].unique()) == 1


def test_a_subset_keeps_images_texts_and_pairs_that_belong_together():
    words = [["red", "car"], ["red"], ["blue", "car"], ["sea"]]
    pairs = ImageTextPairs.of(["a", "b", "c", "d"], words)
    part = subset(pairs, torch.tensor([True, False, False, True]))
    assert part.images == ["a", "d"]
    again = {(part.images[i], part.texts[t]) for i, t in part.pairs.tolist()}
    assert again == {("a", "red"), ("a", "car"), ("d", "sea")}
    assert sorted(part.texts) == ["car", "red", "sea"]


def test_what_is_refused():
    pairs = make_pairs()
    with pytest.raises(InputError, match="folds=1"):
        noisy_pairs(quick, pairs, folds=1)
    with pytest.raises(InputError, match="folds=4.*2 images.*groups"):
        noisy_pairs(quick, pairs, folds=4, groups=torch.arange(pairs.n_images) % 2)
    with pytest.raises(InputError, match="pairs.*a list"):
        noisy_pairs(quick, [1])
    with pytest.raises(InputError, match="fit.*a str"):
        noisy_pairs("prolip", pairs)
    with pytest.raises(InputError, match="fit gave.*int"):
        noisy_pairs(lambda part: 3, pairs, seed=0)
