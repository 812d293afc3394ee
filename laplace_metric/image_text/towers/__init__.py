"""Encoders of our own with two tokens, [CLS] for the mean and [UNC] for the variance.

After ProLIP (Chun et al. 2025, section 3.1), small enough to be trained from nothing. A file a
step: ``_images`` cuts patches, ``_pieces`` and ``_texts`` word pieces, ``_layers`` is what both
are made of, ``_masking`` hides a part, ``_saved`` writes them down.
"""

from laplace_metric.image_text.towers._images import ImageTransformer, check_images
from laplace_metric.image_text.towers._layers import transformer
from laplace_metric.image_text.towers._masking import drop_words
from laplace_metric.image_text.towers._saved import described, rebuilt
from laplace_metric.image_text.towers._texts import TextTransformer

__all__ = [
    "ImageTransformer",
    "TextTransformer",
    "check_images",
    "described",
    "drop_words",
    "rebuilt",
    "transformer",
]
