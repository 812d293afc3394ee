"""The corruptions of the benchmarks, on photographs and on CIFAR-10."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.corruptions import SEVERITIES, TYPES, corrupted
from benchmarks.datasets import load
from laplace_metric.errors import InputError, MissingPackageError, UnknownNameError

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
NOISES = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")
BLURS = ("defocus_blur", "motion_blur", "zoom_blur", "gaussian_blur")


@pytest.fixture(scope="module")
def photographs() -> Tensor:
    """Six patches, uint8 [6, 3, 32, 32]."""
    pytest.importorskip("imagecorruptions", reason="needs the extra laplace-metric[benchmarks]")
    patches = load("photographs", limit=6, size=32, colour=True)
    return (patches.images * 255).round().byte()


def change(after: Tensor, before: Tensor) -> float:
    return float((after.double() - before.double()).abs().mean())


def test_types_are_those_of_the_package() -> None:
    package = pytest.importorskip("imagecorruptions")
    assert list(TYPES) == package.get_corruption_names("all")


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


@pytest.mark.parametrize("kind", TYPES)
def test_global_random_states_are_left_alone(kind: str, photographs: Tensor) -> None:
    np.random.seed(5)  # noqa: NPY002
    ours = random.getstate(), torch.get_rng_state()
    state = np.random.get_state()  # noqa: NPY002
    corrupted(photographs[:2], kind, 3, seed=0)
    assert random.getstate() == ours[0]
    assert torch.equal(torch.get_rng_state(), ours[1])
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(state, after, strict=True))
    np.random.seed(6)  # noqa: NPY002
    first = corrupted(photographs[:2], kind, 3, seed=0)
    np.random.seed(7)  # noqa: NPY002
    assert torch.equal(corrupted(photographs[:2], kind, 3, seed=0), first)


@pytest.mark.parametrize(
    "kind", [*NOISES, "defocus_blur", "gaussian_blur", "zoom_blur", "contrast"]
)
def test_change_grows_with_severity(kind: str, photographs: Tensor) -> None:
    changes = [change(corrupted(photographs, kind, s, seed=0), photographs) for s in SEVERITIES]
    assert changes == sorted(set(changes))
    assert changes[0] > 0


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.08), (3, 0.18)])
def test_noise_has_the_deviation_of_imagenet_c(severity: int, deviation: float) -> None:
    pytest.importorskip("imagecorruptions")
    grey = torch.full((4, 3, 32, 32), 128 / 255)
    noise = corrupted(grey, "gaussian_noise", severity, seed=0) - grey
    assert float(noise.std()) == pytest.approx(deviation, rel=0.03)
    assert abs(float(noise.mean())) < 0.01


def test_spatter_that_misses_leaves_the_image() -> None:
    pytest.importorskip("imagecorruptions")
    white = torch.full((150, 3, 32, 32), 255, dtype=torch.uint8)
    found = corrupted(white, "spatter", 1, seed=0)
    assert int(found.min()) > 100
    assert torch.equal(found, white)  # drops only ever make the picture lighter


IMAGES = torch.zeros(2, 3, 32, 32)


@pytest.mark.parametrize("severity", [0, 1])
def test_other_bad_arguments(severity: int) -> None:
    with pytest.raises(UnknownNameError, match=r"kind='rain'.*'gaussian_noise'"):
        corrupted(IMAGES, "rain", severity, seed=0)
    for images in (IMAGES[0], IMAGES[:, :1], IMAGES[..., 1:], IMAGES.long(), IMAGES.bool()):
        with pytest.raises(InputError, match=r"images must be \[N, 3, 32, 32\]"):
            corrupted(images, "fog", severity, seed=0)
    for images in (IMAGES - 0.1, IMAGES + 1.1, IMAGES / 0):
        with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
            corrupted(images, "fog", severity, seed=0)
    for numbers in ({"seed": -1}, {"seed": 0, "start": -1}):
        with pytest.raises(InputError, match=r"=-1 must be at least 0"):
            corrupted(IMAGES, "fog", severity, **numbers)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'laplace-metric\[benchmarks\]'"):
        corrupted(IMAGES, "fog", 1, seed=0)
