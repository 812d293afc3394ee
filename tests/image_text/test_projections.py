"""A CLIP or SigLIP that is there already: the same means, a posterior, an index, and refusals."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev
from torch.nn.functional import normalize

from laplace_metric.errors import (
    FileFormatError,
    InputError,
    LogitScaleWarning,
    NonFiniteError,
    NotFittedError,
    UnknownNameError,
)
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import (
    ImageTextEmbedder,
    ImageTextPairs,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
)
from laplace_metric.models import Precomputed
from tests.directions import chord_of_weights
from tests.saved_files import edit

F64 = torch.float64
D, IMAGE, TEXT, N = 3, 4, 5, 12


def layers(seed: int = 0, *, bias: bool = False, dtype: torch.dtype = F64) -> list[nn.Linear]:
    g = torch.Generator().manual_seed(seed)
    both = [nn.Linear(size, D, bias=bias, dtype=dtype) for size in (IMAGE, TEXT)]
    for parameter in [p for layer in both for p in layer.parameters()]:
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=dtype)
    return both


def make_pairs(dtype: torch.dtype = F64) -> ImageTextPairs:
    g = torch.Generator().manual_seed(1)
    images, texts = (torch.randn(N, size, generator=g, dtype=dtype) for size in (IMAGE, TEXT))
    return ImageTextPairs(images, texts, torch.arange(N)[:, None].expand(N, 2))


SIGMOID = {"loss": "sigmoid", "logit_bias": -2.0}
EACH = pytest.mark.parametrize("how", [{}, SIGMOID], ids=["softmax", "sigmoid"])


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        yield


@EACH
@pytest.mark.parametrize("bias", [False, True])
def test_means_are_those_of_the_model(how, bias):
    (image, text), pairs = layers(bias=bias), make_pairs()
    embedder = ImageTextEmbedder.from_projections(image, text, 20.0, **how)
    a, b = embedder.embed_image(pairs.images), embedder.embed_text(pairs.texts)
    with torch.no_grad():
        torch.testing.assert_close(a.mean, normalize(image(pairs.images), dim=1))
        torch.testing.assert_close(b.mean, normalize(text(pairs.texts), dim=1))
    assert not a.uncertainty.any()
    with pytest.raises(NotFittedError):
        _ = a.weight_variance
    if how:
        expected = 20 * a.mean @ b.mean.mT - 2
        torch.testing.assert_close(embedder.match_logit(a, b), expected)
    else:
        with pytest.raises(NotFittedError, match="no probability.*pair"):
            embedder.match_logit(a, b)


def dense_curvature(side: int, weights: list[Tensor], how: dict, scale: float) -> Tensor:
    """Gauss-Newton matrix of the whole loss in one projection, by autograd [D A, D A]."""
    pairs, match = make_pairs(), torch.eye(N, dtype=torch.bool)
    augmented = [
        torch.cat([x, torch.ones(N, 1, dtype=F64)], 1) if w.shape[1] > x.shape[1] else x
        for x, w in zip((pairs.images, pairs.texts), weights, strict=True)
    ]

    def scores(flat: Tensor) -> Tensor:
        both = list(weights)
        both[side] = flat.reshape(weights[side].shape)
        image, text = (normalize(x @ w.mT, dim=1) for x, w in zip(augmented, both, strict=True))
        return (image @ text.mT).flatten()

    def loss(s: Tensor) -> Tensor:
        s = s.reshape(N, N)
        if how:
            return pairwise_sigmoid_loss(s, match, scale, how["logit_bias"]) / N
        return multi_positive_infonce(s, match, torch.tensor(scale, dtype=F64))

    flat = weights[side].flatten()
    jacobian = jacrev(scores)(flat)
    return jacobian.mT @ hessian(loss)(scores(flat)) @ jacobian


@EACH
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("side", [0, 1])
def test_the_curvature_is_the_dense_matrix_in_its_eigenbasis(how, bias, side):
    both = layers(bias=bias)
    embedder = ImageTextEmbedder.from_projections(*both, 12.0, **how)
    embedder.fit_posterior(make_pairs())
    weights = [
        torch.cat([x.weight, x.bias[:, None]], 1) if bias else x.weight.detach() for x in both
    ]
    dense = dense_curvature(side, [w.detach() for w in weights], how, 12.0)
    tower = embedder.fitted_.posteriors[side]
    curvature = tower.posterior.curvature
    (block,) = curvature.basis.blocks
    turn = torch.kron(block.left, block.right)
    torch.testing.assert_close(
        curvature.eigenvalues, (turn.mT @ dense @ turn).diagonal(), rtol=1e-5, atol=1e-9
    )
    n = N * N if how else 2 * N
    assert tower.posterior.n_effective == n
    # and the number that a user sees, of the posterior that this spectrum gives
    inverse = turn @ torch.diag(1 / (n * curvature.eigenvalues + 1)) @ turn.mT
    pairs = make_pairs()
    x = (pairs.images, pairs.texts)[side][:1]
    seen = (embedder.embed_image, embedder.embed_text)[side](x)
    h = torch.cat([x, torch.ones(1, 1, dtype=F64)], 1) if bias else x
    expected = chord_of_weights(weights[side].detach(), inverse, h[0])
    assert float(seen.weight_variance[0]) == pytest.approx(expected, rel=1e-4)


def test_matrices_are_as_the_weights_of_layers():
    (image, text), pairs = layers(), make_pairs()
    one = ImageTextEmbedder.from_projections(image, text, 20.0)
    arrays = image.weight.detach().numpy(), text.weight.detach()
    two = ImageTextEmbedder.from_projections(*arrays, torch.tensor(20.0))
    for a, b in zip(one.fitted_.heads.parameters(), two.fitted_.heads.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        image.weight.zero_()  # the embedder has a copy
    assert float(one.embed_image(pairs.images).mean.norm()) > 1


def test_half_precision_becomes_single_and_features_take_its_type():
    image, text = layers(dtype=torch.float16)
    embedder = ImageTextEmbedder.from_projections(image, text.float(), 20.0)
    assert (
        embedder.fit_posterior(make_pairs()).embed_image(torch.ones(1, IMAGE)).weight_variance > 0
    )
    assert {p.dtype for p in embedder.fitted_.heads.parameters()} == {torch.float32}


def test_encoders_give_the_features():
    image, text = layers(dtype=torch.float32)
    pairs = make_pairs(torch.float32)
    body = nn.Linear(7, IMAGE)
    raw = torch.randn(N, 7)
    embedder = ImageTextEmbedder.from_projections(
        image, text, 20.0, image_encoder=body, text_encoder=lambda words: pairs.texts[: len(words)]
    )
    with torch.no_grad():
        expected = normalize(image(body(raw)), dim=1)
    torch.testing.assert_close(embedder.embed_image(raw).mean, expected)
    assert embedder.embed_text(["a", "b"]).mean.shape == (2, D)


def test_a_scale_beyond_that_of_the_training_is_kept():
    embedder = ImageTextEmbedder.from_projections(*layers(), 150.0)
    a, b = embedder.fitted_.heads.objective.scale()
    assert a == pytest.approx(150, rel=1e-5)
    assert b == 0


@pytest.mark.parametrize("scale", [4.6052, 5.0])
def test_a_logarithm_in_the_place_of_a_scale_is_told(scale):
    with pytest.warns(LogitScaleWarning, match=r"logit_scale=.*pass model.logit_scale.exp\(\)"):
        ImageTextEmbedder.from_projections(*layers(), scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageTextEmbedder.from_projections(*layers(), 5.1)


@EACH
def test_it_is_saved(how, tmp_path):
    pairs = make_pairs()
    embedder = ImageTextEmbedder.from_projections(*layers(), 20.0, prior_precision=3.0, **how)
    file = tmp_path / "heads.safetensors"
    for fitted in (False, True):
        if fitted:
            embedder.fit_posterior(pairs)
        embedder.save(file)
        again = ImageTextEmbedder.load(file, Precomputed(), Precomputed())
        for side in ("embed_image", "embed_text"):
            x = pairs.images if side == "embed_image" else pairs.texts
            a, b = (getattr(e, side)(x) for e in (embedder, again))
            assert torch.equal(a.mean, b.mean)
            if fitted:
                assert torch.equal(a.weight_variance, b.weight_variance)
        assert again.fitted_.heads.objective.scale() == embedder.fitted_.heads.objective.scale()
        with pytest.raises(InputError, match="given.*not trained"):
            again.fit(pairs, epochs=1)
    edit(file, "heads", biases=[True, True])
    with pytest.raises(FileFormatError):
        ImageTextEmbedder.load(file, Precomputed(), Precomputed())


def test_given_projections_are_not_trained():
    embedder = ImageTextEmbedder.from_projections(*layers(), 20.0)
    before = [p.clone() for p in embedder.fitted_.heads.parameters()]
    with pytest.raises(InputError, match=r"call fit_posterior\(pairs\)"):
        embedder.fit(make_pairs(), epochs=1)
    embedder.fit_posterior(make_pairs())
    for a, b in zip(before, embedder.fitted_.heads.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_projection": torch.ones(D + 1, TEXT)}, "the same D"),
        ({"image_projection": torch.ones(IMAGE, D)}, r"pass its \.T"),
        ({"image_projection": torch.ones(1, 4), "text_projection": torch.ones(1, 4)}, "D >= 2"),
        ({"image_projection": torch.ones(D)}, r"image_projection has shape \(3,\)"),
        ({"text_projection": nn.Identity()}, "text_projection is a Identity"),
        ({"text_projection": torch.ones(D, TEXT, dtype=torch.long)}, "text_projection"),
        ({"logit_scale": 0.0}, "logit_scale=0.0"),
        ({"logit_scale": -100}, "logit_scale=-100"),
        ({"logit_scale": float("nan")}, "logit_scale=nan"),
        ({"logit_scale": torch.ones(2)}, "logit_scale"),
        ({"logit_bias": -10.0}, "a softmax has none"),
        ({"loss": "sigmoid"}, "needs logit_bias"),
        ({"loss": "sigmoid", "logit_bias": float("inf")}, "logit_bias=inf"),
        ({"factors": {}}, "factors is a dict"),
        ({"prior_precision": 0.0}, "prior_precision"),
    ],
)
def test_what_is_refused(change, message):
    image, text = layers()
    given = {"image_projection": image, "text_projection": text, "logit_scale": 20.0, **change}
    with pytest.raises(InputError, match=message):
        ImageTextEmbedder.from_projections(**given)


def test_other_losses_and_numbers_that_are_none():
    with pytest.raises(UnknownNameError, match="loss"):
        ImageTextEmbedder.from_projections(*layers(), 20.0, loss="clip")
    for part in ("weight", "bias"):
        image, text = layers(bias=True)
        getattr(image, part).data.view(-1)[1] = torch.nan
        with pytest.raises(NonFiniteError, match="image_projection"):
            ImageTextEmbedder.from_projections(image, text, 20.0)


def test_features_of_another_size_and_without_a_direction():
    embedder, pairs = ImageTextEmbedder.from_projections(*layers(), 20.0), make_pairs()
    other = ImageTextPairs(torch.ones(N, IMAGE + 1, dtype=F64), pairs.texts, pairs.pairs)
    with pytest.raises(InputError, match="features of images.*size 5.*takes 4"):
        embedder.fit_posterior(other)
    with pytest.raises(InputError, match="features have.*size 5"):
        embedder.embed_image(torch.ones(2, IMAGE + 1))
    texts = pairs.texts.clone()
    texts[7] = 0
    with pytest.raises(InputError, match="features of texts.*row 7.*to 0"):
        embedder.fit_posterior(ImageTextPairs(pairs.images, texts, pairs.pairs))


# ---------------------------------------------------------------------------- on real data
DATA = os.environ.get("LAPLACE_METRIC_DATA")


def thumbnails_and_words() -> tuple[Tensor, Tensor]:
    """HierarCaps, by the simplest encoders: pixels [N, 432], and words of the captions [N, W]."""
    from benchmarks.datasets.hierarcaps import hierarcaps_captions, read_hierarcaps
    from benchmarks.datasets.remotes import Request

    request = Request("hierarcaps", "test", DATA)
    images = read_hierarcaps(request).pixels(slice(None))
    pixels = torch.nn.functional.interpolate(images.float(), size=12, mode="area").flatten(1)
    captions = [" ".join(texts).lower().split() for texts in hierarcaps_captions(request)]
    words, counts = np.unique(np.concatenate(captions), return_counts=True)
    place = {word: i for i, word in enumerate(words[counts >= 10])}
    texts = torch.zeros(len(captions), len(place))
    for row, caption in enumerate(captions):
        for word in caption:
            if word in place:
                texts[row, place[word]] = 1
    return pixels, texts


def canonical_projections(x: Tensor, y: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Two matrices [D, F], by a canonical correlation analysis with a ridge."""
    roots = []
    for part in (x, y):
        covariance = part.mT @ part / len(part)
        ridge = covariance.trace() / len(covariance) * torch.eye(len(covariance))
        values, vectors = torch.linalg.eigh(covariance + ridge)
        roots.append(vectors / values.sqrt() @ vectors.mT)
    u, _, v = torch.linalg.svd(roots[0] @ (x.mT @ y / len(x)) @ roots[1], full_matrices=False)
    return u[:, :dim].mT @ roots[0], v[:dim] @ roots[1]


@pytest.mark.skipif(DATA is None, reason="LAPLACE_METRIC_DATA is not set")
@EACH
def test_photographs_and_captions_with_projections_that_nobody_trains(how):
    x, y = thumbnails_and_words()
    x, y = x - x[:600].mean(0), y - y[:600].mean(0)
    image, text = canonical_projections(x[:600], y[:600], 16)
    embedder = ImageTextEmbedder.from_projections(image, text, 10.0, **how)
    embedder.fit_posterior(
        ImageTextPairs(x[:600], y[:600], torch.arange(600)[:, None].expand(-1, 2))
    )
    # captions find photographs that the projections have not seen more often than by chance
    index = embedder.index_images(x[600:])
    matches = [[i] for i in range(400)]
    index.calibrate(y[600:800], matches=matches[:200])
    found = index.search(y[800:], k=40)
    ids = np.asarray(found.ids)
    right = (ids == np.arange(200, 400)[:, None]).any(1).mean()
    assert right > 0.16  # 0.1 by chance
    assert bool(found.match_probability.isfinite().all())
    # a photograph whose pixels are in another order is less known than one that is not
    g = torch.Generator().manual_seed(0)
    strange = x[600:][:, torch.randperm(x.shape[1], generator=g)]
    known, unknown = (embedder.embed_image(z).weight_variance for z in (x[600:], strange))
    assert auroc(known.numpy(), unknown.numpy()) > 0.95
