"""Torchvision comes first: timm and open_clip import it."""

from tests.models.vision import torchvision_kernels  # noqa: F401
