"""The progress bar: of widgets in a notebook that has them, of text anywhere else."""

from __future__ import annotations

import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():  # a notebook without widgets is told so, with or without a bar
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

__all__ = ["tqdm"]
