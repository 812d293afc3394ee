"""Options of one fit: where it runs, what it may use, how precise it is. They are not saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from laplace_metric._utils.randomness import Seed, as_generator
from laplace_metric._utils.validation import check_count
from laplace_metric.errors import InputError

DTYPES = (None, torch.float32, torch.float64)
"""Types of the sums of a fit; None is that of the head."""


class Whole(NamedTuple):
    """The fit of which another one is a part, such as all but a fold.

    Parameters
    ----------
    width : int
        Number of inputs of its head. The head of a part may have fewer: coordinates of a subspace
        that holds all inputs.
    use_lengths : bool
        False if an input is as familiar at any length.
    near_far : bool
        False leaves out what ``epistemic`` needs, where nobody reads it. Default: True.
    """

    width: int
    use_lengths: bool
    near_far: bool = True


@dataclass(frozen=True)
class FitOptions:
    """Options of ``LaplaceEmbedder.fit``, which documents each; ``whole`` is of a part's fit alone.

    Raises
    ------
    InputError
        If a value has another type or is out of range.

    Examples
    --------
    >>> FitOptions(distributed=True).dtype  # sums must not depend on how ranks split points
    torch.float64
    """

    reference: int | None = None
    seed: Seed = None
    memory_bytes: int = 512 * 2**20
    progress: bool = False
    dtype: torch.dtype | None = None
    distributed: bool = False
    checkpoint_dir: Path | None = None
    whole: Whole | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype={self.dtype!r}: pass torch.float32, torch.float64 or None.")
        if self.distributed and self.dtype is None:
            object.__setattr__(self, "dtype", torch.float64)
        if self.reference is not None:
            object.__setattr__(self, "reference", check_count("reference", self.reference, 0))
        if self.seed is not None:
            object.__setattr__(self, "seed", as_generator(self.seed))
        if type(self.memory_bytes) is not int or self.memory_bytes < 0:
            memory_bytes = check_count("memory_bytes", self.memory_bytes, 0)
            object.__setattr__(self, "memory_bytes", memory_bytes)
        if torch.empty(0).is_meta:
            raise InputError(
                "torch's default device is 'meta', where tensors hold no values: call "
                "torch.set_default_device('cpu') before fit."
            )
        if self.checkpoint_dir is not None and self.checkpoint_dir.is_file():
            raise InputError(f"checkpoint_dir={str(self.checkpoint_dir)!r} is a file.")

    @property
    def needs_runtime(self) -> bool:
        """True if several processes or a checkpoint are asked for."""
        return self.distributed or self.checkpoint_dir is not None
