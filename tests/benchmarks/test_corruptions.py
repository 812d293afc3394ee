"""The corruptions of the benchmarks, on photographs and on CIFAR-10."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.corruptions import TYPES, corrupted
from benchmarks.datasets import load
from laplace_metric.errors import InputError, UnknownNameError

SURE = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)


@pytest.fixture(scope="module")
def photographs() -> Tensor:
    """Six patches, uint8 [6, 3, 32, 32]."""
    pytest.importorskip("imagecorruptions", reason="needs the extra laplace-metric[benchmarks]")
    patches = load("photographs", limit=6, size=32, colour=True)
    return (patches.images * 255).round().byte()


def change(after: Tensor, before: Tensor) -> float:
    return float((after.double() - before.double()).abs().mean())


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(kind: str, photographs: Tensor) -> None:
    before = photographs.clone()
    first = corrupted(photographs, kind, 3, seed=0)
    assert first.shape == photographs.shape
    assert first.dtype == torch.uint8
    assert all(change(a, b) > 0 for a, b in zip(first, photographs, strict=True))
    assert torch.equal(photographs, before)
    assert torch.equal(corrupted(photographs, kind, 3, seed=0), first)
    other = [
        torch.equal(a, b) for a, b in zip(corrupted(photographs, kind, 3, 1), first, strict=True)
    ]
    assert other == [kind in SURE] * 6


@pytest.mark.parametrize("kind", TYPES)
def test_batches_give_the_same_images(kind: str, photographs: Tensor) -> None:
    whole = corrupted(photographs, kind, 2, seed=3)
    parts = [corrupted(photographs[i : i + 4], kind, 2, 3, start=i) for i in (0, 4)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.08), (3, 0.18)])
def test_noise_has_the_deviation_of_imagenet_c(severity: int, deviation: float) -> None:
    pytest.importorskip("imagecorruptions")
    grey = torch.full((4, 3, 32, 32), 128 / 255)
    noise = corrupted(grey, "gaussian_noise", severity, seed=0) - grey
    assert float(noise.std()) == pytest.approx(deviation, rel=0.03)
    assert abs(float(noise.mean())) < 0.01


IMAGES = torch.zeros(2, 3, 32, 32)


@pytest.mark.parametrize("severity", [0, 1])
def test_other_bad_arguments(severity: int) -> None:
    with pytest.raises(UnknownNameError, match=r"kind='rain'.*'gaussian_noise'"):
        corrupted(IMAGES, "rain", severity, seed=0)
    for images in (IMAGES[0], IMAGES[:, :1], IMAGES[..., 1:], IMAGES.long(), IMAGES.bool()):
        with pytest.raises(InputError, match=r"images.*\[N, 3, 32, 32\]"):
            corrupted(images, "fog", severity, seed=0)
    for images in (IMAGES - 0.1, IMAGES + 1.1, IMAGES / 0):
        with pytest.raises(InputError, match=r"lie in.*\[0, 1\]"):
            corrupted(images, "fog", severity, seed=0)
    for numbers in ({"seed": -1}, {"seed": 0, "start": -1}):
        with pytest.raises(InputError, match=r"=-1.*at least 0"):
            corrupted(IMAGES, "fog", severity, **numbers)
