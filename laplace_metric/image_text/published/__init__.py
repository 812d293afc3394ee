"""Published checkpoints of ProLIP (Chun et al. 2025) as an ``ImageTextEmbedder``.

``_config`` reads what they are made with, ``_names`` knows their tensors, ``_towers`` computes what
their towers compute, ``_load`` puts them together.
"""

from laplace_metric.image_text.published._load import load_prolip
from laplace_metric.image_text.published._names import published_shapes
from laplace_metric.image_text.published._towers import PublishedImages, PublishedTexts

__all__ = ["PublishedImages", "PublishedTexts", "load_prolip", "published_shapes"]
