"""Published Kronecker factors: the posterior they were published for, files, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.image_text import ImageTextEmbedder, ProjectionFactors
from laplace_metric.models import Precomputed
from tests.directions import chord_of_weights, chord_on_the_sphere

F64 = torch.float64
D, IMAGE, TEXT = 3, 4, 5
NUMBERS = {"lambda_img": 7.0, "lambda_txt": 3.0, "n_img": 2.0, "n_txt": 5.0}


def factor(size: int, seed: int, dtype: torch.dtype = F64) -> Tensor:
    """Positive definite, as a sum over rows."""
    rows = torch.randn(2 * size, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return (rows.mT @ rows / 2).to(dtype)


def tensors(bias: int = 0, dtype: torch.dtype = F64) -> dict[str, Tensor]:
    sizes = {"A_img": IMAGE + bias, "B_img": D, "A_txt": TEXT + bias, "B_txt": D}
    return {name: factor(size, i, dtype) for i, (name, size) in enumerate(sizes.items())}


def embedder(factors: ProjectionFactors, *, bias: bool = False) -> ImageTextEmbedder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        both = [nn.Linear(size, D, bias=bias, dtype=F64) for size in (IMAGE, TEXT)]
    return ImageTextEmbedder.from_projections(*both, 100.0, factors=factors)


@pytest.mark.parametrize("bias", [False, True])
def test_the_posterior_is_the_published_one(bias):
    """N(W, (sqrt(n) B + sqrt(l) I)^-1 (x) (sqrt(n) A + sqrt(l) I)^-1), to first order in mu."""
    given = tensors(int(bias))
    clip = embedder(ProjectionFactors(**given, **NUMBERS), bias=bias)
    for side, x, embed in (
        ("img", torch.randn(6, IMAGE, dtype=F64, generator=torch.Generator()), clip.embed_image),
        ("txt", torch.randn(6, TEXT, dtype=F64, generator=torch.Generator()), clip.embed_text),
    ):
        n, prior = NUMBERS[f"n_{side}"], NUMBERS[f"lambda_{side}"]
        a, b = (
            torch.linalg.inv(n**0.5 * m + prior**0.5 * torch.eye(len(m), dtype=F64))
            for m in (given[f"A_{side}"], given[f"B_{side}"])
        )
        covariance = torch.kron(b, a)  # of the rows of W, one after another
        head = clip.fitted_.heads.both[side == "txt"].mean
        weight = head.weight.detach()
        if bias:
            x, weight = (
                torch.cat([x, torch.ones(6, 1, dtype=F64)], 1),
                torch.cat([weight, head.bias.detach()[:, None]], 1),
            )
        for h, found in zip(x, embed(x[:, : head.in_features]).weight_variance, strict=True):
            assert float(found) == pytest.approx(chord_of_weights(weight, covariance, h), rel=1e-5)


def test_a_fit_to_pairs_of_your_own_takes_their_place():
    from laplace_metric.image_text import ImageTextPairs

    clip = embedder(ProjectionFactors(**tensors(), **NUMBERS))
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, size, generator=g, dtype=F64) for size in (IMAGE, TEXT))
    before = clip.embed_image(x).weight_variance
    clip.fit_posterior(ImageTextPairs(x, y, torch.arange(8)[:, None].expand(8, 2)))
    assert not torch.equal(clip.embed_image(x).weight_variance, before)
    assert clip.fitted_.posteriors[0].posterior.prior_precision == 1


def written(folder: Path, numbers: object = NUMBERS, **changes: Tensor) -> Path:
    save_file({**tensors(dtype=torch.float32), **changes}, folder / "factors.safetensors")
    (folder / "prior_precision_analytic.json").write_text(json.dumps(numbers))
    return folder


def test_files_are_read_and_the_posterior_is_saved(tmp_path):
    factors = ProjectionFactors.load(str(written(tmp_path)))
    same = ProjectionFactors(**tensors(dtype=torch.float32), **NUMBERS)
    assert torch.equal(factors.A_txt, same.A_txt)
    assert (factors.lambda_img, factors.lambda_txt) == (7, 3)
    assert (factors.n_img, factors.n_txt) == (2, 5)
    clip = embedder(factors)
    clip.save(tmp_path / "clip.safetensors")
    again = ImageTextEmbedder.load(tmp_path / "clip.safetensors", Precomputed(), Precomputed())
    for name, size in (("embed_image", IMAGE), ("embed_text", TEXT)):
        x = torch.ones(2, size, dtype=F64)
        assert torch.equal(*(getattr(e, name)(x).weight_variance for e in (clip, again)))
    posteriors = [tower.posterior for tower in again.fitted_.posteriors]
    assert [p.prior_precision for p in posteriors] == [7, 3]
    assert [p.n_effective for p in posteriors] == [2, 5]


def test_files_that_are_no_factors(tmp_path):
    with pytest.raises(FileFormatError, match=r"pickles.*\(.pt\).*not read"):
        ProjectionFactors.load(tmp_path)
    written(tmp_path, {"lambda_img": 1.0})
    with pytest.raises(FileFormatError, match="A_img, A_txt, B_img.*B_txt, lambda_img: A_img"):
        ProjectionFactors.load(tmp_path)
    written(tmp_path, [1, 2])
    with pytest.raises(FileFormatError, match="belong there"):
        ProjectionFactors.load(tmp_path)
    written(tmp_path, C_img=torch.ones(2, 2))
    with pytest.raises(FileFormatError, match="C_img"):
        ProjectionFactors.load(tmp_path)
    written(tmp_path)
    (tmp_path / "factors.safetensors").write_bytes(b"\x80\x04")  # as a pickle begins
    with pytest.raises(FileFormatError, match="cannot be read"):
        ProjectionFactors.load(tmp_path)
    written(tmp_path)
    (tmp_path / "prior_precision_analytic.json").write_text("{")
    with pytest.raises(FileFormatError, match="cannot be read"):
        ProjectionFactors.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("A_img", torch.ones(4, 5), r"A_img has the shape \[4, 5\]: pass a square matrix"),
        ("A_txt", torch.ones(4), "A_txt has shape"),
        ("A_txt", torch.ones(0, 0), "A_txt is empty"),
        ("B_img", torch.eye(3) + torch.ones(3, 3).triu(1), "B_img is not symmetric: .* up to 1"),
        (
            "B_txt",
            torch.diag(torch.tensor([1.0, 2.0, -0.01])),
            "B_txt is not positive semi-definit",
        ),
        ("B_txt", -torch.eye(3), "B_txt is not positive semi-definite"),
        ("B_txt", torch.eye(3, dtype=torch.long), "B_txt must be a floating tensor"),
        ("lambda_img", 0.0, "lambda_img=0.0"),
        ("lambda_txt", -1.0, "lambda_txt=-1.0"),
        ("n_img", float("nan"), "n_img=nan"),
        ("n_txt", 0, "n_txt=0"),
    ],
)
def test_factors_that_are_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        ProjectionFactors(**{**tensors(), **NUMBERS, name: value})


def test_numbers_that_are_none():
    broken = factor(D, 0)
    broken[1, 1] = torch.inf
    with pytest.raises(NonFiniteError, match="B_img"):
        ProjectionFactors(**{**tensors(), **NUMBERS, "B_img": broken})


@pytest.mark.parametrize(
    ("name", "size", "bias", "message"),
    [
        ("A_img", IMAGE + 1, False, r"pass \[4, 4\], for the inputs of .* which has no bias"),
        ("A_txt", TEXT, True, r"pass \[6, 6\], for the inputs of its projection, with its bias"),
        ("B_img", D + 1, False, r"B_img has the shape \[4, 4\]: pass \[3, 3\], for the dimensions"),
        ("B_txt", D - 1, False, "B_txt has the shape"),
    ],
)
def test_factors_of_other_projections(name, size, bias, message):
    given = {**tensors(int(bias)), name: factor(size, 0)}
    with pytest.raises(InputError, match=message):
        embedder(ProjectionFactors(**given, **NUMBERS), bias=bias)


def test_rounding_of_single_precision_is_no_fault():
    """A sum of few rows has eigenvalues 0, which rounding makes negative."""
    g = torch.Generator().manual_seed(0)
    row, rounding = (torch.randn(n, IMAGE, generator=g) for n in (1, IMAGE))
    flat = (1000 * row.mT @ row) * (1 + 1e-6 * rounding)
    factors = ProjectionFactors(**{**tensors(), **NUMBERS, "A_img": flat})
    assert torch.equal(factors.A_img, factors.A_img.mT)
    assert bool(embedder(factors).embed_image(torch.eye(IMAGE)).weight_variance.isfinite().all())


def test_factors_without_any_curvature_are_the_prior():
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    clip = embedder(ProjectionFactors(**zeros, lambda_img=4.0, lambda_txt=4.0))
    x = torch.ones(1, IMAGE, dtype=F64)
    raw = clip.fitted_.heads.image.mean(x).detach()
    expected = chord_on_the_sphere(raw[0], torch.eye(D, dtype=F64) * x.square().sum() / 4)
    assert float(clip.embed_image(x).weight_variance[0]) == pytest.approx(expected, rel=1e-5)
